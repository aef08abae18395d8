{{/* Labels of a resource: (dict "root" $ "name" "gateway"); without a name, those that all share. */}}
{{- define "duetime.labels" -}}
{{- with .name -}}
app.kubernetes.io/name: duetime-{{ . }}
{{ end -}}
app.kubernetes.io/part-of: duetime
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* Labels of a pod. A chart's version is none of them: it would roll every pod. */}}
{{- define "duetime.podLabels" -}}
app.kubernetes.io/name: duetime-{{ .name }}
app.kubernetes.io/part-of: duetime
{{- if .serves }}
duetime.io/serves: metrics
{{- end }}
{{- end }}

{{/* Annotations of a pod: a changed setting rolls it. */}}
{{- define "duetime.podAnnotations" -}}
checksum/settings: {{ include "duetime.settings" . | sha256sum }}
{{- end }}

{{/* Data of the ConfigMap that all processes share. */}}
{{- define "duetime.settings" -}}
delay-levels: {{ .Values.settings.delayLevels | quote }}
log-level: {{ .Values.settings.logLevel | quote }}
prometheus-url: {{ .Values.settings.prometheusUrl | quote }}
stores: {{ include "duetime.stores" . | quote }}
transaction-timeout-ms: {{ .Values.settings.transactionTimeoutMs | int | quote }}
{{- end }}

{{- define "duetime.stores" -}}
{{- $copies := int .Values.store.copies }}
{{- range $shard := until (int .Values.shards) }}{{ if $shard }},{{ end }}{{ $shard }}=
{{- range $place := until $copies }}{{ if $place }}|{{ end }}duetime-store-{{ add (mul $shard $copies) $place }}:9801{{ end }}{{ end }}
{{- end }}

{{/* An image: (dict "root" $ "name" "gateway" "tag" .Values.gateway.tag). */}}
{{- define "duetime.image" -}}
{{ printf "%s/%s:%s" .root.Values.image.repository .name (.tag | default .root.Values.image.tag | default .root.Chart.AppVersion) | quote }}
{{- end }}

{{/* The first part of a pod's spec; none of our processes calls the Kubernetes API. */}}
{{- define "duetime.pod" -}}
serviceAccountName: duetime
automountServiceAccountToken: false
# Service variables of Kubernetes, such as DUETIME_GATEWAY_PORT, would count as settings.
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "duetime.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "duetime.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Pods of one name on different nodes: (dict "name" "store" "required" true). */}}
{{- define "duetime.affinity" -}}
podAntiAffinity:
  {{- if .required }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {app.kubernetes.io/name: duetime-{{ .name }}}
  preferredDuringSchedulingIgnoredDuringExecution: []
  {{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {app.kubernetes.io/name: duetime-{{ .name }}}
  {{- end }}
{{- end }}

{{- define "duetime.spread" -}}
{{- if .Values.spreadZones }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        app.kubernetes.io/part-of: duetime
        duetime.io/serves: metrics
    matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}

{{/* A variable of the shared settings: (dict "name" "DUETIME_LOG_LEVEL" "key" "log-level"). */}}
{{- define "duetime.setting" -}}
- name: {{ .name }}
  valueFrom: {configMapKeyRef: {name: duetime-settings, key: {{ .key }}}}
{{- end }}

{{- define "duetime.databaseUrl" -}}
- name: {{ .name }}
  valueFrom: {secretKeyRef: {name: {{ .root.Values.database.secret | quote }}, key: url}}
{{- end }}

{{- define "duetime.log" -}}
- {name: DUETIME_LOG_FORMAT, value: json}
{{ include "duetime.setting" (dict "name" "DUETIME_LOG_LEVEL" "key" "log-level") }}
{{- end }}

{{/* Variables of a gRPC process: (dict "root" $ "name" "retry" "port" 9804 "stores" true); ports follow the first. */}}
{{- define "duetime.env" -}}
{{- $prefix := printf "DUETIME_%s" (upper .name) -}}
- {name: {{ $prefix }}_HOST, value: 0.0.0.0}
- {name: {{ $prefix }}_PORT, value: "{{ .port }}"}
- {name: {{ $prefix }}_PROBE_PORT, value: "{{ add .port 20 }}"}
- {name: {{ $prefix }}_METRICS_PORT, value: "{{ add .port 10 }}"}
{{- if .stores }}
{{ include "duetime.databaseUrl" (dict "root" .root "name" (printf "%s_DATABASE_URL" $prefix)) }}
{{ include "duetime.setting" (dict "name" (printf "%s_STORES" $prefix) "key" "stores") }}
{{- end }}
{{ include "duetime.log" . }}
{{ include "duetime.setting" (dict "name" "DUETIME_DELAY_LEVELS" "key" "delay-levels") }}
{{- if eq .root.Values.access.mode "tls" }}
{{ include "duetime.certificateFiles" . }}
- {name: {{ $prefix }}_METRICS_TLS, value: "on"}
{{- else }}
- {name: DUETIME_INSECURE, value: "1"}
- name: DUETIME_CLUSTER_SECRET
  valueFrom: {secretKeyRef: {name: {{ .root.Values.access.clusterSecret | quote }}, key: secret}}
{{- end }}
{{- include "duetime.own" . }}
{{- end }}

{{- define "duetime.certificateFiles" -}}
- {name: DUETIME_TLS_CERT_FILE, value: /etc/duetime/tls/tls.crt}
- {name: DUETIME_TLS_KEY_FILE, value: /etc/duetime/tls/tls.key}
- {name: DUETIME_TLS_CA_FILE, value: /etc/duetime/tls/ca.crt}
{{- end }}

{{/* Settings of one process, from its `env`. */}}
{{- define "duetime.own" -}}
{{- $prefix := printf "DUETIME_%s" (upper .name) -}}
{{- range $key, $value := (index .root.Values .name).env }}
{{- /* Numbers of a file are floats: 67108864 would become 6.7108864e+07. */}}
{{- $whole := and (kindIs "float64" $value) (eq $value (floor $value)) }}
- {name: {{ $prefix }}_{{ $key }}, value: {{ ternary (int64 $value) $value $whole | toString | quote }}}
{{- end }}
{{- end }}

{{- define "duetime.ports" -}}
- {name: grpc, containerPort: {{ .port }}}
- {name: probe, containerPort: {{ add .port 20 }}}
- {name: metrics, containerPort: {{ add .port 10 }}}
{{- end }}

{{/* Probes of a gRPC process: (dict "port" 9804 "starts" 60 "lives" 6), in failures. */}}
{{- define "duetime.probes" -}}
{{- $port := add .port 20 -}}
startupProbe:
  grpc: {port: {{ $port }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: {{ .starts }}
readinessProbe:
  grpc: {port: {{ $port }}}
  periodSeconds: 5
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  grpc: {port: {{ $port }}, service: liveness}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: {{ .lives }}
{{- end }}

{{/* Waits until the migration has upgraded the schema to this version: (dict "root" $ "image" IMAGE). */}}
{{- define "duetime.schema" -}}
- name: schema
  image: {{ .image }}
  command: [python, -P, -m, duetime_core.metadata, wait]
  env:
    {{- include "duetime.databaseUrl" (dict "root" .root "name" "DUETIME_DATABASE_URL") | nindent 4 }}
  {{- include "duetime.small" . | nindent 2 }}
{{- end }}

{{/* The rest of a container that only talks to the database. */}}
{{- define "duetime.small" -}}
resources:
  requests: {cpu: 50m, memory: 96Mi, ephemeral-storage: 64Mi}
  limits: {cpu: "1", memory: 256Mi, ephemeral-storage: 256Mi}
securityContext:
  {{- include "duetime.containerSecurity" . | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "duetime.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if eq .Values.access.mode "tls" }}
# The directory, not its files: subPath mounts are never updated.
- {name: tls, mountPath: /etc/duetime/tls, readOnly: true}
{{- end }}
{{- end }}

{{- define "duetime.tmp" -}}
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: 64Mi}
{{- end }}

{{- define "duetime.tls" -}}
{{- if eq .root.Values.access.mode "tls" }}
- {name: tls, secret: {secretName: duetime-{{ .name }}-tls, defaultMode: 0440}}
{{- end }}
{{- end }}

{{/* A Service's protocol: no plain-text HTTP/2 with TLS. */}}
{{- define "duetime.protocol" -}}
{{- if eq .Values.access.mode "tls" }}https{{ else }}kubernetes.io/h2c{{ end }}
{{- end }}

{{- define "duetime.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: duetime-{{ .name }}
  labels:
    {{- include "duetime.labels" (dict "root" .root) | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {app.kubernetes.io/name: duetime-{{ .name }}}
{{- end }}

{{/* The Service of a process: (dict "root" $ "name" "retry" "port" 9804). */}}
{{- define "duetime.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: duetime-{{ .name }}
  labels:
    {{- include "duetime.labels" . | nindent 4 }}
spec:
  selector: {app.kubernetes.io/name: duetime-{{ .name }}}
  ports:
    - {name: grpc, port: {{ .port }}, targetPort: grpc, appProtocol: {{ include "duetime.protocol" .root }}}
{{- end }}
