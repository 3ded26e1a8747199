{{/* SPDX-License-Identifier: Apache-2.0

Variables of containers. A variable that a value `env` gives takes the place of the chart's own.
*/}}

{{/* A number or boolean as text, because Kubernetes takes only text in a variable. */}}
{{- define "nvct.text" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{/* A list of variables; of entries with one name, the last one stays: (dict "own" YAML "given" list of lists). */}}
{{- define "nvct.env" -}}
{{- $entries := fromYamlArray .own -}}
{{- range .given }}{{ $entries = concat $entries (. | default list) }}{{ end -}}
{{- $last := dict -}}
{{- range $index, $entry := $entries }}{{ $_ := set $last $entry.name $index }}{{ end -}}
{{- $kept := list -}}
{{- range $index, $entry := $entries }}
{{- if eq (get $last $entry.name) $index }}
{{- if or (kindIs "float64" $entry.value) (kindIs "int64" $entry.value) (kindIs "bool" $entry.value) }}
{{- $entry = merge (dict "value" (include "nvct.text" $entry.value)) $entry }}
{{- end }}
{{- $kept = append $kept $entry }}
{{- end -}}
{{- end -}}
{{- toYaml $kept -}}
{{- end }}

{{- define "nvct.agentEnv" -}}
{{- $v := .Values -}}
{{- $given := list $v.agent.env $v.devicePlugin.env $v.dra.env $v.gfd.env $v.migManager.env -}}
{{- $exporter := list -}}
{{- range $v.dcgmExporter.env }}{{ if not (hasPrefix "NVIDIA_" .name) }}{{ $exporter = append $exporter . }}{{ end }}{{ end -}}
{{- include "nvct.env" (dict "own" (include "nvct.agentOwnEnv" .) "given" (append $given $exporter)) -}}
{{- end }}

{{- define "nvct.agentOwnEnv" -}}
- name: NVIDIA_VISIBLE_DEVICES
  value: void
- name: NVCT_AGENT_TASKS
  value: {{ include "nvct.tasks" . }}
{{- include "nvct.commonEnv" . | nindent 0 }}
- name: NVIDIA_DRIVER_ROOT
  value: /
- name: FAIL_ON_INIT_ERROR
  value: "false"
- name: DEVICE_LIST_STRATEGY
  value: {{ include "nvct.deviceListStrategy" . }}
{{- with .Values.deviceIDStrategy }}
- name: DEVICE_ID_STRATEGY
  value: {{ . }}
{{- end }}
{{- if .Values.compatWithCPUManager }}
- name: PASS_DEVICE_SPECS
  value: "true"
{{- end }}
{{- if .Values.driverUpgrades }}
- name: NVCT_DRIVER_UPGRADES
  value: "true"
{{- end }}
{{- with .Values.devicePlugin.startupTaint }}
- name: STARTUP_TAINT
  value: {{ . | quote }}
{{- end }}
{{- if ne .Values.health.preflight "none" }}
- name: HEALTH_PREFLIGHT
  value: {{ .Values.health.preflight | quote }}
{{- end }}
{{- if and .Values.condition.enabled (not .Values.condition.podEvents) }}
- name: NVCT_POD_EVENTS
  value: "false"
{{- end }}
{{- if include "nvct.heals" . }}
- name: NVCT_REMEDIATION
  value: {{ .Values.health.remediation }}
{{- if .Values.health.remediationGroup }}
- name: NVCT_REMEDIATION_GROUP
  value: "true"
{{- end }}
{{- if include "nvct.brakes" . }}
- name: NVCT_REMEDIATION_NODES
  value: {{ .Values.health.remediationNodes | int | quote }}
- name: NVCT_REMEDIATION_STOP
  value: {{ .Values.health.remediationStop | int | quote }}
- name: NVCT_REMEDIATION_RESETS
  value: {{ .Values.health.remediationResets | int | quote }}
{{- end }}
{{- end }}
{{- if or .Values.migStrategy (eq .Values.mig.strategy "mixed") (not (include "nvct.configMap" .)) }}
- name: MIG_STRATEGY # it would take precedence over config files
  value: {{ include "nvct.migStrategy" . }}
{{- end }}
- name: MPS_ROOT
  value: {{ include "nvct.mpsRoot" . }}
- name: NVIDIA_CDI_HOOK_PATH
  value: {{ ternary (printf "%s/toolkit" .Values.toolkit.installDir) "/usr/bin" .Values.toolkit.enabled }}/nvidia-cdi-hook
{{- if include "nvct.configMap" . }}
- name: CONFIG_FILE # the task config-manager writes it
  value: /config/config.yaml
- name: FALLBACK_STRATEGIES
  value: {{ include "nvct.configFallbacks" . }}
{{- with include "nvct.configDefault" . }}
- name: DEFAULT_CONFIG
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- with include "nvct.chartEnv" . | trim }}
{{ . }}
{{- end }}
{{- include "nvct.nodeEnv" . | nindent 0 }}
{{- with .Values.agent.port }}
- name: NVCT_AGENT_LISTEN
  value: {{ printf ":%d" (int .) | quote }}
{{- end }}
{{- if include "nvct.changesMig" . }}
{{- if include "nvct.migConfig" . }}
- name: NVCT_MIG_CONFIG_FILE
  value: /mig-config/config.yaml
{{- end }}
{{- with .Values.migManager.config.default }}
- name: NVCT_MIG_DEFAULT_CONFIG
  value: {{ . | quote }}
{{- end }}
{{- if .Values.migManager.gpuClientsConfig.name }}
- name: GPU_CLIENTS_FILE
  value: /mig-clients/clients.yaml
{{- end }}
{{- if .Values.migManager.evictPods }}
- name: NVCT_MIG_EVICT_PODS
  value: "true"
{{- end }}
{{- end }}
{{- if .Values.dra.enabled }}
- name: POD_UID # an older and a newer pod serve claims at the same time
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
{{- if include "nvct.choosesByLabel" . }}
- name: NVCT_RESOURCES # of a Node without the label nvct.dev/resources
  value: {{ .Values.dra.unlabeledNodes }}
{{- end }}
{{- if .Values.dra.shares }}
- name: MEMORY_SHARES
  value: {{ .Values.dra.shares }}
{{- end }}
- name: KUBELET_PLUGINS_DIRECTORY_PATH
  value: {{ include "nvct.kubelet" . }}/plugins
- name: KUBELET_REGISTRAR_DIRECTORY_PATH
  value: {{ include "nvct.kubelet" . }}/plugins_registry
{{- end }}
{{- if .Values.dcgmExporter.enabled }}
- name: DCGM_EXPORTER_LISTEN
  value: {{ printf ":%d" (int .Values.dcgmExporter.port) | quote }}
{{- if include "nvct.counters" . }}
- name: DCGM_EXPORTER_COLLECTORS
  value: /etc/dcgm-exporter/dcgm-metrics.csv
{{- end }}
{{- with .Values.dcgmExporter }}
{{- if or .podLabels .enablePodLabels }}
- name: DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS
  value: "true"
{{- end }}
{{- if .enablePodUID }}
- name: DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID
  value: "true"
{{- end }}
{{- with .podLabelAllowlistRegex }}
- name: DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX
  value: {{ join "," . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The agent's variables that choose the paths in CDI specifications. */}}
{{- define "nvct.specEnv" -}}
{{- $names := list "NVIDIA_DRIVER_ROOT" "NVIDIA_DEV_ROOT" "NVIDIA_CDI_HOOK_PATH" "MPS_ROOT" -}}
{{- $kept := list -}}
{{- range fromYamlArray (include "nvct.agentEnv" .) }}{{ if has .name $names }}{{ $kept = append $kept . }}{{ end }}{{ end -}}
{{- toYaml $kept -}}
{{- end }}

{{/* Variables of the installer; the uninstallation uses the same ones. */}}
{{- define "nvct.installerEnv" -}}
{{- $own := fromYamlArray (include "nvct.installerOwnEnv" .) -}}
{{- $given := .Values.toolkit.env | default list -}}
{{- range $given }}
{{- if has .name (list "CONTAINERD_SET_AS_DEFAULT" "DOCKER_SET_AS_DEFAULT") }}
{{- $given = append $given (dict "name" "NVIDIA_RUNTIME_SET_AS_DEFAULT" "value" (toString .value)) }}
{{- end }}
{{- end -}}
{{- include "nvct.env" (dict "own" (toYaml $own) "given" (list $given)) -}}
{{- end }}

{{- define "nvct.installerOwnEnv" -}}
- name: NVIDIA_VISIBLE_DEVICES # of this container
  value: void
- name: RUNTIME
  value: {{ .Values.toolkit.runtime }}
{{- if include "nvct.nri" . }}
- name: NVCT_UNDO_RUNTIME_CONFIG # restore the engine's files
  value: "true"
{{- end }}
- name: TOOLKIT_INSTALL_DIR
  value: {{ .Values.toolkit.installDir }}
- name: TOOLKIT_PID_FILE
  value: /host/run/nvct-toolkit/toolkit.pid # the agent cannot write there
- name: RUNTIME_ENABLE_CDI
  value: {{ .Values.cdi.enabled | quote }}
- name: NVCT_PUBLISH
  value: {{ .Values.cdi.enabled | quote }}
- name: NVIDIA_RUNTIME_SET_AS_DEFAULT
  value: {{ include "nvct.setAsDefault" . | quote }}
{{- if include "nvct.strategies" . | fromYamlArray | has "volume-mounts" }}
- name: ACCEPT_NVIDIA_VISIBLE_DEVICES_AS_VOLUME_MOUNTS
  value: "true"
{{- end }}
- name: DRIVER_ROOT
  value: {{ .Values.hostPaths.driverInstallDir }}
{{- if .Values.driverUpgrades }}
- name: NVCT_DRIVER_UPGRADES # a driver container may start later
  value: "true"
{{- end }}
- name: NVCT_DRIVER_READY_FILE
  value: /run/nvct-driver/driver-ready
{{- if include "nvct.policy" . }}
- name: NVCT_POLICY_FILE
  value: /policy/policy.toml
{{- end }}
{{- end }}
