{{/* SPDX-License-Identifier: Apache-2.0

Values of the GPU operator's chart, of the device plugin's (0.9 to 0.20) and of GPU Feature Discovery's: understood,
ignored, or refused. docs/kubernetes.md has them as tables.
*/}}

{{/* The RuntimeClasses: operator.runtimeClass is another name of nvidia; the others are for cdi.enabled. */}}
{{- define "nvct.runtimeClasses" -}}
{{- $names := list "nvidia" (default "nvidia" (.Values.operator | default dict).runtimeClass) | uniq -}}
{{- if .Values.cdi.enabled }}{{ $names = concat $names (list "nvidia-cdi" "nvidia-legacy") | uniq }}{{ end -}}
{{- join " " $names -}}
{{- end }}

{{/* Not empty if the NRI plugin runs. */}}
{{- define "nvct.nri" -}}
{{- if or .Values.nri.enabled .Values.cdi.nriPluginEnabled }}true{{ end -}}
{{- end }}

{{/* Whether nvidia is the engine's default runtime: true or false. */}}
{{- define "nvct.setAsDefault" -}}
{{- $value := toString .Values.toolkit.setAsDefault -}}
{{- if include "nvct.nri" . }}false{{ else if eq $value "auto" }}{{ and (include "nvct.byRuntime" .) .Values.toolkit.policy | not | not }}{{ else }}{{ $value }}{{ end -}}
{{- end }}

{{- define "nvct.mpsRoot" -}}
{{- dig "mps" "root" .Values.mps.root .Values.devicePlugin -}}
{{- end }}

{{- define "nvct.kubelet" -}}
{{- .Values.hostPaths.kubeletRootDir | default .Values.hostPaths.kubelet -}}
{{- end }}

{{/* The ConfigMap of MIG configurations. The operator's own has what nvct has built in. */}}
{{- define "nvct.migConfig" -}}
{{- if and .Values.migManager.config.create .Values.migManager.config.data -}}
{{- .Values.migManager.config.name | default (printf "%s-mig-configs" (include "nvct.fullname" .)) -}}
{{- else if ne .Values.migManager.config.name "default-mig-parted-config" }}{{ .Values.migManager.config.name }}{{ end -}}
{{- end }}

{{- define "nvct.migStrategy" -}}
{{- default .Values.mig.strategy .Values.migStrategy -}}
{{- end }}

{{- define "nvct.deviceListStrategy" -}}
{{- $strategy := default (ternary "cdi-cri" "envvar" .Values.cdi.enabled) .Values.deviceListStrategy -}}
{{- kindIs "slice" $strategy | ternary (join "," $strategy) $strategy -}}
{{- end }}

{{/* The ConfigMap of config files, "" for none; config is the plugin's name of devicePlugin.config. */}}
{{- define "nvct.configMap" -}}
{{- $config := .Values.config | default dict -}}
{{- if and $config.map (or $config.name .Values.devicePlugin.config.name) }}{{ fail "config.map and the name of a ConfigMap are both given: nvct takes one of them." }}{{ end -}}
{{- $plugin := .Values.devicePlugin.config -}}
{{- if and $plugin.create (not $plugin.data) }}{{ fail "devicePlugin.config.create=true needs config files in devicePlugin.config.data." }}{{ end -}}
{{- if or $config.map (and $plugin.create (not $plugin.name)) }}{{ include "nvct.fullname" . }}-configs{{ else }}{{ .Values.devicePlugin.config.name | default $config.name | default "" }}{{ end -}}
{{- end }}

{{- define "nvct.configDefault" -}}
{{- .Values.devicePlugin.config.default | default (.Values.config | default dict).default | default "" -}}
{{- end }}

{{/* What nodes without the label get that no default names. The operator's have GPUs as they are; the plugin's chart
refuses, because all of its values speak of these config files. */}}
{{- define "nvct.configFallbacks" -}}
{{- $config := .Values.config | default dict -}}
{{- $own := ternary (list "named" "single") (list "named" "single" "empty") (or $config.map $config.name | not | not) -}}
{{- join "," ($config.fallbackStrategies | default $own) -}}
{{- end }}

{{/* Variables of the agent that these charts have as values. */}}
{{- define "nvct.chartEnv" -}}
{{- $names := dict "GDRCOPY_ENABLED" .Values.gdrcopyEnabled "GDS_ENABLED" .Values.gdsEnabled "MOFED_ENABLED" .Values.mofedEnabled -}}
{{- $_ := set $names "DEVICE_DISCOVERY_STRATEGY" .Values.deviceDiscoveryStrategy -}}
{{- $_ = set $names "GFD_NO_TIMESTAMP" (coalesce .Values.gfd.noTimestamp .Values.noTimestamp) -}}
{{- $_ = set $names "GFD_SLEEP_INTERVAL" (coalesce .Values.gfd.sleepInterval .Values.sleepInterval) -}}
{{- range $name, $value := $names }}
{{- if not (kindIs "invalid" $value) }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* Refuse what would leave a cluster without what its values promise. */}}
{{- define "nvct.refuse" -}}
{{- if regexMatch "^nvcr[.]io/nvidia/|/(k8s-device-plugin|gpu-feature-discovery|gpu-operator)$" .Values.image.repository }}
{{- fail (printf "image.repository=%s is an image of NVIDIA's and has no nvct. Give that of nvct's image, and its image.tag." .Values.image.repository) }}
{{- end }}
{{- range $section, $instead := fromYaml (include "nvct.refused" .) }}
{{- if (index $.Values $section | default dict).enabled }}
{{- fail (printf "%s.enabled=true: %s. Set %s.enabled=false." $section $instead $section) }}
{{- end }}
{{- end }}
{{- $given := .Values.deviceListStrategy -}}
{{- range concat (.Values.agent.env | default list) (.Values.devicePlugin.env | default list) }}
{{- if eq .name "DEVICE_LIST_STRATEGY" }}{{ $given = true }}{{ end -}}
{{- end }}
{{- $byRuntime := include "nvct.byRuntime" . | splitList "," -}}
{{- range .Values.toolkit.env }}
{{- if and (eq .name "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED") (eq (toString .value) "false") (or (has "envvar" $byRuntime) (has "auto" $byRuntime)) }}
{{- fail (printf "toolkit.env: %s=false keeps from pods what the device list strategy %s gives them. Set deviceListStrategy=cdi-cri or volume-mounts." .name (join "," $byRuntime)) }}
{{- end }}
{{- if and (eq .name "ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS") (eq (toString .value) "false") (has "volume-mounts" $byRuntime) }}
{{- fail (printf "toolkit.env: %s=false keeps from pods what the device list strategy %s gives them. Remove it." .name (join "," $byRuntime)) }}
{{- end }}
{{- end }}
{{- if and (include "nvct.nri" .) (or (not .Values.cdi.enabled) (include "nvct.byRuntime" .)) }}
{{- fail "nri.enabled=true leaves the engine's files alone: the engine itself gives pods their GPUs, by CDI names. Set cdi.enabled=true, and deviceListStrategy=cdi-cri if it is given." }}
{{- end }}
{{- if and (include "nvct.nri" .) .Values.nri.env (eq .Values.toolkit.policy "auto") }}
{{- fail "nri.env=true has no effect with toolkit.policy=auto, which lets no pod ask by a variable. Write rules into toolkit.policy that say who may (docs/policy.md)." }}
{{- end }}
{{- $usesNames := and .Values.cdi.enabled (not $given) (contains "device-plugin" (include "nvct.tasks" .)) -}}
{{- if and $usesNames (semverCompare "<1.29.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "cdi.enabled=true needs Kubernetes 1.29 or later; this is %s, whose kubelet ignores CDI names: pods would get no GPU. Set cdi.enabled=false." .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- $egress := .Values.networkPolicy.egress | default dict -}}
{{- if and $egress.enabled (not $egress.apiServer) (include "nvct.anyPodUsesApi" .) }}
{{- fail "networkPolicy.egress.enabled=true without networkPolicy.egress.apiServer would cut the agent off from the API server. Give the addresses of the Service kubernetes and of its endpoints, as [10.96.0.1/32, 192.0.2.10/32]." }}
{{- end }}
{{- if and (include "nvct.evicts" .) (not (include "nvct.hasPolicies" .)) }}
{{- fail (printf "migManager.evictPods=true needs Kubernetes 1.30 or later; this is %s, which cannot limit the agent's evictions to pods of its own node. Set migManager.evictPods=false, and drain a node before its MIG devices change." .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- end }}

{{- define "nvct.refused" -}}
driver: nvct installs no driver; install NVIDIA's driver on the nodes, or run a driver container that mounts its root at hostPaths.driverInstallDir
vgpuManager: nvct installs no vGPU manager
sandboxWorkloads: nvct prepares no GPUs for virtual machines
{{- end }}

{{/* Whole sections that have no effect, and why. */}}
{{- define "nvct.withoutEffect" -}}
clusterPolicy: nvct has no custom resource
ccManager: nvct does not change the confidential computing mode
dcgm: nvct needs no DCGM
dcgmPodExporter: the exporter's metrics name the pods
draDriver: the value of nvct's own DRA driver is dra.enabled
gdrcopy: nvct installs no kernel module; GDRCOPY_ENABLED in devicePlugin.env gives its device to pods
gds: nvct installs no kernel module; GDS_ENABLED in devicePlugin.env gives its devices to pods
gpuCluster: nvct has no custom resource
kataManager: nvct prepares no Kata containers
kataSandboxDevicePlugin: nvct prepares no Kata containers
nfd: nvct needs no Node Feature Discovery
node-feature-discovery: nvct needs no Node Feature Discovery
nodeStatusExporter: nvct agent --status shows the state of a node
psa: label the namespace yourself, see below
psp: Kubernetes has no such policies any more
sandboxDevicePlugin: nvct prepares no GPUs for virtual machines
validator: the agent advertises a GPU only when its driver answers
vfioManager: nvct prepares no GPUs for virtual machines
vgpuDeviceManager: nvct prepares no GPUs for virtual machines
{{- end }}

{{/* Sections of both charts: what nvct knows of each. */}}
{{- define "nvct.known" -}}
cdi: [enabled, nriPluginEnabled]
daemonsets: [labels, annotations, priorityClassName, tolerations]
dcgmExporter: [enabled, port, env, podLabels, enablePodLabels, enablePodUID, podLabelAllowlistRegex, config, service, serviceMonitor, podMonitor]
devicePlugin: [enabled, env, config, mps, startupTaint]
driver: [enabled]
gfd: [enabled, env, allowedLabels, noTimestamp, sleepInterval]
config: [name, map, default, fallbackStrategies]
hostPaths: [driverInstallDir, kubelet, kubeletRootDir]
mig: [strategy]
migManager: [enabled, env, config, gpuClientsConfig, evictPods]
mps: [root]
operator: [defaultRuntime, runtimeClass] # the engine is found, see toolkit.runtime
platform: [openshift]
sandboxWorkloads: [enabled]
toolkit: [enabled, runtime, installDir, setAsDefault, env, policy, resources]
vgpuManager: [enabled]
{{- end }}

{{/* Single values of the device plugin's chart that have no effect, and why. */}}
{{- define "nvct.plainWithoutEffect" -}}
allowDefaultNamespace: any namespace will do
componentSelectorLabels: the selector has the component
failOnInitError: the agent waits for a driver, as with failOnInitError=false
legacyDaemonsetAPI: Kubernetes has no such API any more
namespace: helm's option --namespace chooses it
namespaceOverride: helm's option --namespace chooses it
nvidiaDriverRoot: the driver is found; hostPaths.driverInstallDir is that of a driver container
replicaCount: there is no operator
podSecurityContext: the agent runs as root
runtimeClassName: the agent needs no RuntimeClass
securityContext: the rights of each container are the chart's
selectorLabelsOverride: the selector is the chart's
updateStrategy: the newer agent starts before the older one ends
{{- end }}

{{/* A line for each value that has no effect. */}}
{{- define "nvct.ignored" -}}
{{- range $section, $reason := fromYaml (include "nvct.withoutEffect" .) }}
{{- $value := index $.Values $section }}
{{- if and (kindIs "map" $value) (ne (toString (get $value "enabled")) "false") }}
- {{ $section }}: {{ $reason }}
{{- end }}
{{- end }}
{{- range $name, $reason := fromYaml (include "nvct.plainWithoutEffect" .) }}
{{- if index $.Values $name }}
- {{ $name }}: {{ $reason }}
{{- end }}
{{- end }}
{{- range $section, $known := fromYaml (include "nvct.known" .) }}
{{- $value := index $.Values $section }}
{{- if kindIs "map" $value }}
{{- range $key := keys $value | sortAlpha }}
{{- if not (has $key $known) }}
- {{ $section }}.{{ $key }}: nvct has nothing of that name
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
