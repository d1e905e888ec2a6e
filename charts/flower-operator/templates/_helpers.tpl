{{- define "flower-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "flower-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "flower-operator.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "flower-operator.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "flower-operator.selector" -}}
app.kubernetes.io/name: {{ include "flower-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "flower-operator.labels" -}}
{{ include "flower-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "flower-operator.nodeImage" -}}
{{ .Values.nodeImage.repository }}:{{ .Values.nodeImage.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* What the operator may read of what is in no namespace, each rule with its reason. */}}
{{- define "flower-operator.clusterRules" -}}
# Where a volume can be used, and whether that node still exists: a member whose node was
# deleted for good is replaced. Without these two rules it waits for its node for ever.
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get]
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
{{- end -}}

{{/* What the operator may do with objects of a namespace, each rule with its reason. */}}
{{- define "flower-operator.rules" -}}
# The objects that the operator works for.
- apiGroups: [flowerdb.dev]
  resources: [flowerclusters]
  verbs: [get, list, watch]
# What it says of them; written as a whole under its resourceVersion.
- apiGroups: [flowerdb.dev]
  resources: [flowerclusters/status]
  verbs: [update]
# The pods' controller. Made and kept by server-side apply, which asks for create and patch.
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch]
# Client, leader and peer Services; the pods' identity, which has no token.
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch]
# Drains take at most one member at a time.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
# Members are watched, labelled with their role, and restarted when they are not ready.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch, delete]
# Members that are ready are restarted by eviction, so that the budget is asked.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
# Volumes are watched, owned when spec.volumeClaims.whenDeleted says so, and deleted once
# their member has left the group.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [list, watch, patch, delete]
# Bundles of applications. Only metadata is watched; the one that a spec names is read.
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch]
# Tokens: the Secret that a spec names is read; one is made when none is named. No list, so
# that the operator sees no other Secret.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
# What happened, for kubectl describe.
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
# Scraping of the members, where Prometheus' operator is installed; deleted when
# spec.monitoring.podMonitor is set to false.
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, create, patch, delete]
{{- end -}}
