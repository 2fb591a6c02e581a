{{- define "neurond.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* What tells the pods of this release from others, and stays for as long as it is installed. */}}
{{- define "neurond.selector" -}}
app.kubernetes.io/name: neurond
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "neurond.labels" -}}
{{ include "neurond.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end -}}
