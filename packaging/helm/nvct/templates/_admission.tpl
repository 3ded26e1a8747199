{{/* SPDX-License-Identifier: Apache-2.0

What the account of the agent may change, for admission policies; docs/kubernetes.md says it in a sentence. RBAC cannot
express these limits. They hold also for somebody who has taken over the agent's container, and so has its token.
*/}}

{{/* Not empty if the API server knows these policies. */}}
{{- define "nvct.hasPolicies" -}}
{{- if semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version }}true{{ end -}}
{{- end }}

{{/* The condition by which a policy applies only to the agent's account. */}}
{{- define "nvct.isAgent" -}}
matchConditions:
  - name: agent
    expression: >-
      request.userInfo.username ==
      'system:serviceaccount:{{ .Release.Namespace }}:{{ include "nvct.serviceAccount" . }}'
{{- end }}

{{/* In CEL: a list with the name of the Node that a pod's token is bound to; empty for any other token. */}}
{{- define "nvct.ownNodes" -}}
request.userInfo.?extra[?'authentication.kubernetes.io/node-name'].orValue([])
{{- end }}

{{- define "nvct.binding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "nvct.labels" (dict "root" .root "part" "agent") | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
  {{- with .params }}
  paramRef:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Not empty if the agent evicts pods. */}}
{{- define "nvct.evicts" -}}
{{- if or (include "nvct.brakes" .) (and .Values.migManager.evictPods (include "nvct.changesMig" .)) }}true{{ end -}}
{{- end }}

{{/* A list in CEL. */}}
{{- define "nvct.celList" -}}
[{{ range $index, $text := . }}{{ if $index }}, {{ end }}'{{ $text }}'{{ end }}]
{{- end }}

{{/* Groups of labels that GFD_EXTRA_LABELS names and other programs act on. */}}
{{- define "nvct.extraLabels" -}}
{{- range concat (.Values.agent.env | default list) (.Values.gfd.env | default list) }}
{{- if eq .name "GFD_EXTRA_LABELS" }}{{ .value }},{{ end -}}
{{- end }}
{{- end }}

{{/* Keys of labels, as YAML: those of the tasks that are on. Switches of GPU operators are among them only if a task
needs them, and never the label that a task obeys. */}}
{{- define "nvct.labelKeys" -}}
{{- $groups := include "nvct.extraLabels" . | splitList "," -}}
{{- $deployed := list -}}
{{- if .Values.gfd.enabled }}
- nvidia.com/gpu-memory
- nvidia.com/mig.capable
- nvidia.com/mig.strategy
- nvidia.com/mps.capable
- nvidia.com/vgpu.present
{{- if has "pci" $groups }}
- feature.node.kubernetes.io/pci-10de.present
{{- end }}
{{- if has "operator" $groups }}
{{- $deployed = list "container-toolkit" "dcgm" "dcgm-exporter" "device-plugin" "driver" "gpu-feature-discovery" "mig-manager" "node-status-exporter" "operator-validator" }}
{{- end }}
{{- range .Values.gfd.allowedLabels }}
- {{ . }}
{{- end }}
{{- end }}
{{- if include "nvct.changesMig" . }}
- nvidia.com/mig.config.state
{{- $deployed = concat $deployed (ternary (list) (list "client") .Values.driverUpgrades) (list "dcgm" "dcgm-exporter" "device-plugin" "gpu-feature-discovery" "nvsm") }}
{{- end }}
{{- if include "nvct.heals" . }}
- nvct.dev/gpu-request
{{- end }}
{{- range $deployed | uniq }}
- nvidia.com/gpu.deploy.{{ . }}
{{- end }}
{{- end }}

{{/* Allowed prefixes of label keys, as YAML. */}}
{{- define "nvct.labelPrefixes" -}}
{{- if .Values.gfd.enabled }}
- nvidia.com/cuda.
- nvidia.com/gfd.
- nvidia.com/gpu.
- nvidia.com/mig-
- nvidia.com/vgpu.host-driver-
{{- end }}
{{- end }}
