{{/* SPDX-License-Identifier: Apache-2.0

Values of NVIDIA's charts: understood, renamed, ignored, or refused. docs/kubernetes.md has them as tables.
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

{{/* The ConfigMap of MIG configurations; "" for the operator's own, whose configurations nvct has built in. */}}
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

{{/* The ConfigMap of config files, "" for none; in the plugin's chart, devicePlugin.config is called config. */}}
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

{{/* The fallbacks for nodes without the label if there is no default. With the operator's values, these nodes offer their
GPUs without a config file; with those of the plugin's chart, they offer none. */}}
{{- define "nvct.configFallbacks" -}}
{{- $config := .Values.config | default dict -}}
{{- $own := ternary (list "named" "single") (list "named" "single" "empty") (or $config.map $config.name | not | not) -}}
{{- join "," ($config.fallbackStrategies | default $own) -}}
{{- end }}

{{/* Variables of the agent for values of these charts. */}}
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

{{/* Refuse values that promise what nvct would not do. */}}
{{- define "nvct.refuse" -}}
{{- $table := include "nvct.table" . | fromYaml }}
{{- if regexMatch $table.images .Values.image.repository }}
{{- fail (printf "image.repository=%s is an image of NVIDIA's and has no nvct. Give that of nvct's image, and its image.tag." .Values.image.repository) }}
{{- end }}
{{- if regexMatch "-(distroless|ubuntu[0-9.]+|ubi[0-9]+)$" (.Values.image.tag | default "") }}
{{- fail (printf "image.tag=%s is a tag of NVIDIA's images. Give that of nvct's image." .Values.image.tag) }}
{{- end }}
{{- range $path, $reason := $table.refused }}
{{- $value := (include "nvct.at" (list $.Values $path) | fromJson).value }}
{{- if $value }}
{{- fail (printf "%s%s: %s. %s %s%s." $path (kindIs "bool" $value | ternary "=true" "") $reason (kindIs "bool" $value | ternary "Set" "Remove") $path (kindIs "bool" $value | ternary "=false" "")) }}
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
{{- if and (include "nvct.heals" .) (not (include "nvct.hasPolicies" .)) }}
{{- fail (printf "health.remediation=%s needs Kubernetes 1.30 or later; this is %s, which cannot limit the agent to its own node and the pods there. Set health.remediation=none." .Values.health.remediation .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if and (include "nvct.evicts" .) (not (include "nvct.hasPolicies" .)) }}
{{- fail (printf "migManager.evictPods=true needs Kubernetes 1.30 or later; this is %s, which cannot limit the agent's evictions to pods of its own node. Set migManager.evictPods=false, and drain a node before its MIG devices change." .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- end }}

{{/* Tables of the values of NVIDIA's charts; `nvct convert values` reads them, too. */}}
{{- define "nvct.table" -}}
{{- .Files.Get "chart_values.yaml" -}}
{{- end }}

{{/* The value at a dotted path, of (list values path), as {value: VALUE} in JSON. */}}
{{- define "nvct.at" -}}
{{- $at := index . 0 -}}
{{- range splitList "." (index . 1) }}
{{- if kindIs "map" $at }}{{ $at = index $at . }}{{ else }}{{ $at = index (dict) . }}{{ end -}}
{{- end -}}
{{- dict "value" $at | toJson -}}
{{- end }}

{{/* Give nvct's names to values of the charts of dcgm-exporter and the DRA driver. Each template includes this first,
because helm renders templates in an order of its own, with the same values. */}}
{{- define "nvct.translate" -}}
{{- $renamed := (include "nvct.table" . | fromYaml).renamed -}}
{{- range $row := $renamed }}
{{- $value := (include "nvct.at" (list $.Values (index $row 0)) | fromJson).value -}}
{{- $set := not (kindIs "invalid" $value) -}}
{{- if gt (len $row) 2 }}{{ $set = $value }}{{ $value = index $row 2 }}{{ end -}}
{{- if $set }}
{{- $path := index $row 1 | splitList "." -}}
{{- $section := $.Values -}}
{{- range initial $path }}
{{- if not (kindIs "map" (index $section .)) }}{{ $_ := set $section . (dict) }}{{ end -}}
{{- $section = index $section . -}}
{{- end -}}
{{- $own := index $section (last $path) -}}
{{- if and (kindIs "map" $own) (kindIs "map" $value) }}{{ $value = merge $value $own }}{{ end -}}
{{- $_ := set $section (last $path) $value -}}
{{- end -}}
{{- end -}}
{{- range $renamed }}
{{- $path := index . 0 | splitList "." -}}
{{- $section := $.Values -}}
{{- range initial $path }}{{ if kindIs "map" $section }}{{ $section = index $section . }}{{ end }}{{ end -}}
{{- if kindIs "map" $section }}{{ $_ := unset $section (last $path) }}{{ end -}}
{{- end -}}
{{- end }}

{{/* Not empty if a section is empty, or has only one section that is empty. */}}
{{- define "nvct.isEmpty" -}}
{{- toJson . | regexFind "^([{](\"[^\"]*\":)?)+}+$" -}}
{{- end }}

{{/* Values that have an effect only with one of some other values. */}}
{{- define "nvct.needs" -}}
condition.podEvents: [condition.enabled=true]
config.default: [config.map, config.name, devicePlugin.config.name]
dcgmExporter.config.create: [dcgmExporter.enabled=true]
dcgmExporter.config.data: [dcgmExporter.config.create=true]
dcgmExporter.config.name: [dcgmExporter.enabled=true]
dcgmExporter.podLabels: [dcgmExporter.enabled=true]
dcgmExporter.podMonitor.enabled: [dcgmExporter.enabled=true]
dcgmExporter.serviceMonitor.enabled: [dcgmExporter.enabled=true]
devicePlugin.config.data: [devicePlugin.config.create=true]
devicePlugin.config.default: [devicePlugin.config.name, devicePlugin.config.create=true, config.map, config.name]
dra.unlabeledNodes: [dra.enabled=true]
dra.shares: [dra.enabled=true]
gfd.allowedLabels: [gfd.enabled=true]
migManager.config.data: [migManager.config.create=true]
migManager.config.default: [migManager.enabled=true]
migManager.evictPods: [migManager.enabled=true]
migManager.gpuClientsConfig.name: [migManager.enabled=true]
networkPolicy.from: [networkPolicy.enabled=true]
nri.env: [nri.enabled=true, cdi.nriPluginEnabled=true]
nri.givenByKubelet: [nri.enabled=true, cdi.nriPluginEnabled=true]
nri.managementNamespaces: [nri.enabled=true, cdi.nriPluginEnabled=true]
toolkit.env: [toolkit.enabled=true]
{{- end }}

{{/* A sentence for each value that has no effect because none of these other values is set. */}}
{{- define "nvct.lacking" -}}
{{- range $path, $needs := fromYaml (include "nvct.needs" .) }}
{{- $value := (include "nvct.at" (list $.Values $path) | fromJson).value -}}
{{- $lacks := and $value (ne (toString $value) "off") -}}
{{- range $needs }}
{{- if (include "nvct.at" (list $.Values (splitList "=" . | first)) | fromJson).value }}{{ $lacks = false }}{{ end -}}
{{- end -}}
{{- if $lacks }}
{{ $path }}{{ if or (kindIs "string" $value) (kindIs "bool" $value) }}={{ $value | toString | trim | trunc 60 | splitList "\n" | first }}{{ end }} has no effect without {{ join " or " $needs }}.
{{- end }}
{{- end }}
{{- end }}

{{/* A line for each value that has no effect. */}}
{{- define "nvct.ignored" -}}
{{- $table := include "nvct.table" . | fromYaml }}
{{- range $path, $reason := $table.ignored }}
{{- $value := (include "nvct.at" (list $.Values $path) | fromJson).value }}
{{- $off := and (kindIs "map" $value) (eq (toString (dig "enabled" "" (kindIs "map" $value | ternary $value dict))) "false") }}
{{- if and $value (not $off) (not (include "nvct.isEmpty" $value)) }}
- {{ $path }}: {{ $reason }}
{{- end }}
{{- end }}
{{- range $section, $known := $table.known }}
{{- $value := (include "nvct.at" (list $.Values $section) | fromJson).value }}
{{- if kindIs "map" $value }}
{{- range $key := keys $value | sortAlpha }}
{{- if not (or (has $key $known) (include "nvct.isEmpty" (index $value $key))) }}
- {{ $section }}.{{ $key }}: nvct has no value of that name
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
