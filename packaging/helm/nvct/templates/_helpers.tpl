{{/* SPDX-License-Identifier: Apache-2.0 */}}

{{- define "nvct.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* The name of the release's objects: nvct for a release of that name. */}}
{{- define "nvct.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "nvct.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "nvct.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "nvct.serviceAccount" -}}
{{- default (ternary (include "nvct.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end }}

{{/* The labels of a part (agent, worker, uninstall or test) that never change. */}}
{{- define "nvct.selector" -}}
app.kubernetes.io/name: {{ include "nvct.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{/* Labels of objects, but not of pods, because a new chart version would replace all pods. */}}
{{- define "nvct.labels" -}}
{{ include "nvct.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "nvct.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default "agent" }}{{ end }}
{{- end -}}
{{- end }}

{{/* Names of Secrets, alone or as {name: NAME}. */}}
{{- define "nvct.pull" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ kindIs "map" . | ternary (get (kindIs "map" . | ternary . dict) "name") . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* What all pods on nodes have: where they run, and with which image. All except the agent's see the host's processes.
With DRA, nvct's pods stay while the driver is replaced, because a pod with a claim cannot end without them. */}}
{{- define "nvct.node" -}}
serviceAccountName: {{ include "nvct.serviceAccount" . }}
automountServiceAccountToken: false
{{- with .Values.priorityClassName | default .Values.daemonsets.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- include "nvct.pull" . }}
{{- $selector := .Values.nodeSelector | default dict -}}
{{- if and .Values.driverUpgrades (not .Values.dra.enabled) }}
{{- $selector = merge (dict "nvidia.com/gpu.deploy.client" "true") $selector }}
{{- end }}
{{- with $selector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $tolerations := .Values.tolerations | default .Values.daemonsets.tolerations | default list -}}
{{- with .Values.devicePlugin.startupTaint }}
{{- $tolerations = append $tolerations (dict "key" . "operator" "Exists") }}
{{- end }}
{{- if include "nvct.heals" . }}
{{- $tolerations = append $tolerations (dict "key" (include "nvct.failedTaint" .) "operator" "Exists") }}
{{- end }}
{{- with $tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The security context of a container with no right of root except to own root's files. */}}
{{- define "nvct.plain" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* The same for a container that uses files of the host. */}}
{{- define "nvct.noRights" -}}
{{ include "nvct.plain" . }}
seLinuxOptions: # sockets and files of the host; without SELinux it has no effect
  type: spc_t
{{- end }}

{{/* Not empty if NVML is in the agent's own container, which then is privileged: by agent.privileged, or because the agent
reboots the host or stops its services before a change of MIG. */}}
{{- define "nvct.ownNvml" -}}
{{- $needs := .Values.agent.privileged -}}
{{- if include "nvct.changesMig" . -}}
{{- range concat (.Values.agent.env | default list) (.Values.migManager.env | default list) -}}
{{- if has .name (list "WITH_REBOOT" "WITH_SHUTDOWN_HOST_GPU_CLIENTS") }}{{ $needs = or $needs (eq (.value | toString) "true") }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if $needs }}true{{ end -}}
{{- end }}

{{/* A mark of what is installed together: the agent waits for the worker with the same mark. */}}
{{- define "nvct.release" -}}
{{- list (include "nvct.image" .) (include "nvct.agentEnv" .) (include "nvct.installerEnv" .) (include "nvct.policy" .) .Values.toolkit.enabled | toJson | sha256sum | trunc 16 -}}
{{- end }}

{{/* Where the worker listens: in a folder that the agent sees read-only. */}}
{{- define "nvct.workerSocket" -}}
/run/nvct-driver/nvml.sock
{{- end }}

{{/* How a newer pod replaces an older one on a node. */}}
{{- define "nvct.update" -}}
rollingUpdate: # the newer one starts, and takes over before the older one ends
  maxSurge: 1
  maxUnavailable: 0
{{- end }}

{{/* Labels and annotations of the pods of agent and worker. */}}
{{- define "nvct.podMetadata" -}}
labels:
  {{- include "nvct.selector" . | nindent 2 }}
  {{- with .root.Values.daemonsets.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  kubectl.kubernetes.io/default-container: {{ .container }}
  nvct.dev/policy: {{ include "nvct.policy" .root | sha256sum | trunc 16 | quote }}
  {{- with merge dict (.root.Values.podAnnotations | default dict) .root.Values.daemonsets.annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* The container that installs, which ends before those of its pod start. */}}
{{- define "nvct.installer" -}}
- name: toolkit
  image: {{ include "nvct.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [/usr/bin/nvct, install, --no-daemon, --gpu-nodes-only, --find-driver]
  env:
    {{- include "nvct.installerEnv" . | nindent 4 }}
  {{- with .Values.toolkit.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    privileged: true
  volumeMounts:
    {{- include "nvct.installerMounts" . | nindent 4 }}
{{- end }}

{{/* The mounts of the host that a process with NVML needs; and their volumes. */}}
{{- define "nvct.nvmlMounts" -}}
- name: host
  mountPath: /host
  readOnly: true
  mountPropagation: HostToContainer
- name: dev # with later device nodes, of MIG devices or of a new driver
  mountPath: /dev
- name: cdi # who can write specifications can become root of the host
  mountPath: /var/run/cdi
- name: mps # pipes and logs of MPS control daemons, shared with pods
  mountPath: /mps
  mountPropagation: Bidirectional # pods see the file systems that are mounted there
{{- end }}

{{- define "nvct.nvmlVolumes" -}}
- name: host
  hostPath:
    path: /
- name: dev
  hostPath:
    path: /dev
- name: cdi
  hostPath:
    path: /var/run/cdi
    type: DirectoryOrCreate
- name: mps
  hostPath:
    path: {{ include "nvct.mpsRoot" . }}
    type: DirectoryOrCreate
{{- end }}

{{/* How long an agent may serve on while a newer pod pulls its image and starts; without a newer pod it ends at once. */}}
{{- define "nvct.graceSeconds" -}}
300
{{- end }}

{{/* Variables of the agent and of its NVML worker, which has the roots. */}}
{{- define "nvct.commonEnv" -}}
- name: NVCT_LOG_LEVEL
  value: {{ .Values.logLevel }}
- name: NVCT_LOG_FORMAT
  value: {{ .Values.logFormat }}
- name: NVCT_AGENT_GRACE_S # the same as terminationGracePeriodSeconds
  value: {{ include "nvct.graceSeconds" . | quote }}
- name: NVCT_DRIVER_READY_FILE # names the driver root that the installer found; without it, the host's
  value: /run/nvct-driver/driver-ready
- name: NVCT_DRIVER_FOLDER # the only other root that the file may name
  value: /host{{ .Values.hostPaths.driverInstallDir }}
- name: DRIVER_ROOT_CTR_PATH
  value: /host
- name: DEV_ROOT_CTR_PATH
  value: /host
{{- end }}

{{/* The agent's tasks, in the form of --tasks. */}}
{{- define "nvct.tasks" -}}
{{- $tasks := list -}}
{{- if .Values.condition.enabled }}{{ $tasks = append $tasks "condition" }}{{ end -}}
{{- if include "nvct.configMap" . }}{{ $tasks = append $tasks "config-manager" }}{{ end -}}
{{- if and .Values.devicePlugin.enabled (or (not .Values.dra.enabled) (include "nvct.choosesByLabel" .)) }}{{ $tasks = append $tasks "device-plugin" }}{{ end -}}
{{- if .Values.dra.enabled }}{{ $tasks = append $tasks "dra" }}{{ end -}}
{{- if .Values.dcgmExporter.enabled }}{{ $tasks = append $tasks "exporter" }}{{ end -}}
{{- if include "nvct.heals" . }}{{ $tasks = append $tasks "heal" }}{{ end -}}
{{- if .Values.gfd.enabled }}{{ $tasks = append $tasks "labels" }}{{ end -}}
{{- if include "nvct.changesMig" . }}{{ $tasks = append $tasks "mig-manager" }}{{ end -}}
{{- if not (or .Values.devicePlugin.enabled .Values.dra.enabled .Values.gfd.enabled .Values.dcgmExporter.enabled) }}{{ fail "The agent has nothing to do: enable devicePlugin, gfd or dcgmExporter." }}{{ end -}}
{{- join "," $tasks -}}
{{- end }}

{{/* Not empty if something is done about GPUs that fail; the taint of a Node whose GPUs have all failed. */}}
{{- define "nvct.heals" -}}
{{- if ne .Values.health.remediation "none" }}true{{ end -}}
{{- end }}

{{/* Not empty if nodes wait for each other before they heal: from `evict` on. */}}
{{- define "nvct.brakes" -}}
{{- if not (has .Values.health.remediation (list "none" "quarantine")) }}true{{ end -}}
{{- end }}

{{/* Not empty if NVSentinel is asked to reboot nodes. */}}
{{- define "nvct.asksForReboots" -}}
{{- if eq .Values.health.remediation "reboot-request" }}true{{ end -}}
{{- end }}

{{- define "nvct.failedTaint" -}}
nvct.dev/gpus-failed
{{- end }}

{{/* Not empty if a label of the Node chooses between device plugin and DRA driver. */}}
{{- define "nvct.choosesByLabel" -}}
{{- if and .Values.dra.enabled .Values.devicePlugin.enabled .Values.dra.unlabeledNodes }}true{{ end -}}
{{- end }}

{{/* Not empty if pods get GPUs only by claims: neither the device plugin nor a DeviceClass offers nvidia.com/gpu. */}}
{{- define "nvct.onlyClaims" -}}
{{- $classes := .Values.dra.deviceClasses -}}
{{- $extends := and $classes.create $classes.extendedResource (semverCompare ">=1.36.0-0" .Capabilities.KubeVersion.Version) -}}
{{- $offers := and (include "nvct.choosesByLabel" .) (eq .Values.dra.unlabeledNodes "classic") -}}
{{- if and .Values.dra.enabled (not $extends) (not $offers) }}true{{ end -}}
{{- end }}

{{/* The version of resource.k8s.io. */}}
{{- define "nvct.resourceApi" -}}
{{- if semverCompare ">=1.34.0-0" .Capabilities.KubeVersion.Version -}}
resource.k8s.io/v1
{{- else if semverCompare ">=1.32.0-0" .Capabilities.KubeVersion.Version -}}
resource.k8s.io/v1beta1
{{- else -}}
{{- fail (printf "dra.enabled needs Kubernetes 1.32 or later; this is %s." .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end }}

{{/* Not empty if the agent changes MIG devices; with DRA, claims have them. */}}
{{- define "nvct.changesMig" -}}
{{- if and .Values.migManager.enabled (not .Values.dra.enabled) }}true{{ end -}}
{{- end }}

{{/* The ports of the agent's container, "" without one. */}}
{{- define "nvct.ports" -}}
{{- if .Values.agent.port }}
- name: agent
  containerPort: {{ .Values.agent.port }}
{{- end }}
{{- if .Values.dcgmExporter.enabled }}
- name: metrics
  containerPort: {{ .Values.dcgmExporter.port }}
{{- end }}
{{- end }}

{{/* The ConfigMap with the exporter's counter file, "" if its own is used. */}}
{{- define "nvct.counters" -}}
{{- if .Values.dcgmExporter.enabled -}}
{{- with .Values.dcgmExporter.config -}}
{{- .name | default (ternary (printf "%s-counters" (include "nvct.fullname" $)) "" .create) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Not empty if the agent asks the API server. */}}
{{- define "nvct.usesApi" -}}
{{- if or .Values.driverUpgrades (include "nvct.changesNode" .) .Values.dra.enabled (include "nvct.configMap" .) (include "nvct.listsPods" .) (include "nvct.listsSlices" .) }}true{{ end -}}
{{- end }}

{{/* Not empty if a pod of the chart asks the API server; the uninstallation's Job always does. */}}
{{- define "nvct.anyPodUsesApi" -}}
{{- if or .Values.uninstall.enabled (include "nvct.usesApi" .) }}true{{ end -}}
{{- end }}

{{/* Not empty if the exporter shows claims, whose devices it looks up in ResourceSlices. */}}
{{- define "nvct.listsSlices" -}}
{{- if .Values.dcgmExporter.enabled }}
{{- range .Values.dcgmExporter.env }}
{{- if and (eq .name "KUBERNETES_ENABLE_DRA") (has (lower (toString .value)) (list "true" "t" "1")) }}true{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Not empty if the exporter asks for labels or UIDs of pods: by a value of the chart, or by a variable. */}}
{{- define "nvct.listsPods" -}}
{{- if .Values.dcgmExporter.enabled }}
{{- with .Values.dcgmExporter }}{{ if or .podLabels .enablePodLabels .enablePodUID }}true{{ end }}{{ end -}}
{{- $names := list "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS" "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID" }}
{{- range .Values.dcgmExporter.env }}
{{- if and (has .name $names) (has (lower (toString .value)) (list "true" "t" "1")) }}true{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Not empty if the agent changes its Node. */}}
{{- define "nvct.changesNode" -}}
{{- if or .Values.condition.enabled .Values.gfd.enabled .Values.devicePlugin.startupTaint (include "nvct.changesMig" .) (include "nvct.heals" .) }}true{{ end -}}
{{- end }}

{{/* Not empty if the agent writes Events. */}}
{{- define "nvct.writesEvents" -}}
{{- if or .Values.condition.enabled (include "nvct.changesMig" .) }}true{{ end -}}
{{- end }}

{{/* What the agent may do with Nodes: docs/kubernetes.md says which task needs what. */}}
{{- define "nvct.nodeVerbs" -}}
{{- $verbs := list -}}
{{- if or (include "nvct.changesNode" .) .Values.dra.enabled }}{{ $verbs = append $verbs "get" }}{{ end -}}
{{- if or .Values.gfd.enabled .Values.devicePlugin.startupTaint (include "nvct.changesMig" .) (include "nvct.heals" .) }}{{ $verbs = append $verbs "patch" }}{{ end -}}
{{- if or .Values.driverUpgrades (include "nvct.configMap" .) (include "nvct.changesMig" .) (include "nvct.choosesByLabel" .) }}{{ $verbs = append $verbs "watch" }}{{ end -}}
{{- join ", " $verbs -}}
{{- end }}

{{/* The Node's name: for the API server, and in metrics. */}}
{{- define "nvct.nodeEnv" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}

{{/* Access to the API server for one container: its mount and volume. */}}
{{- define "nvct.tokenMount" -}}
- name: token
  mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  readOnly: true
{{- end }}

{{- define "nvct.tokenVolume" -}}
- name: token
  projected:
    sources:
      - serviceAccountToken:
          path: token
          expirationSeconds: 3607
      - configMap:
          name: kube-root-ca.crt
          items:
            - key: ca.crt
              path: ca.crt
      - downwardAPI:
          items:
            - path: namespace
              fieldRef:
                fieldPath: metadata.namespace
{{- end }}

{{/* Mounts of the installer. The host is writable, because the engine's files may be anywhere. */}}
{{- define "nvct.installerMounts" -}}
- name: host
  mountPath: /host
  mountPropagation: HostToContainer
- name: toolkit
  mountPath: {{ .Values.toolkit.installDir }}
- name: found # the installer writes there where the driver is
  mountPath: /run/nvct-driver
{{- if include "nvct.policy" . }}
- name: policy
  mountPath: /policy
{{- end }}
{{- end }}

{{/* Volumes of the installer, except the host's root, which other containers of the pod have, too. */}}
{{- define "nvct.installerVolumes" -}}
{{ include "nvct.foundVolume" . }}
- name: toolkit
  hostPath:
    path: {{ .Values.toolkit.installDir }}
    type: DirectoryOrCreate
{{- if include "nvct.policy" . }}
- name: policy
  configMap:
    name: {{ include "nvct.fullname" . }}-policy
{{- end }}
{{- end }}

{{/* Where the driver is, and the worker's socket. */}}
{{- define "nvct.foundVolume" -}}
- name: found
  hostPath:
    path: /run/nvct-driver
    type: DirectoryOrCreate
{{- end }}

{{/* The rules of the policy, as TOML, "" for none; docs/kubernetes.md gives the reasons. */}}
{{- define "nvct.policy" -}}
{{- if ne .Values.toolkit.policy "auto" -}}
{{- .Values.toolkit.policy -}}
{{- else -}}
{{- if include "nvct.nri" . }}{{ .Files.Get "policy/nri.toml" }}{{ end -}}
{{- .Files.Get "policy/pods.toml" | replace "/var/lib/kubelet" (include "nvct.kubelet" .) -}}
{{- end -}}
{{- end }}

{{/* How the device plugin gives GPUs, as YAML. The chart sets these as variables, so that no config file can change
them. */}}
{{- define "nvct.strategies" -}}
{{- $given := dict -}}
{{- range fromYamlArray (include "nvct.agentEnv" .) }}
{{- $_ := set $given .name (.value | default "unknown" | toString | nospace | splitList ",") }}
{{- end -}}
{{- toYaml (ternary $given.DEVICE_LIST_STRATEGY list (has "device-plugin" $given.NVCT_AGENT_TASKS)) -}}
{{- end }}

{{/* The strategy that may need nvct's runtime, "" if the engine itself gives pods their GPUs. */}}
{{- define "nvct.byRuntime" -}}
{{- $strategies := include "nvct.strategies" . | fromYamlArray -}}
{{- if not (or (has "cdi-cri" $strategies) (has "cdi-annotations" $strategies)) }}{{ join "," $strategies | default (ternary "" "envvar" .Values.cdi.enabled) }}{{ end -}}
{{- end }}
