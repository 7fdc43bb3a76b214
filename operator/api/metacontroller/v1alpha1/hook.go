package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Hook says how a hook is called: exactly one of webhook and rego.
// +kubebuilder:pruning:PreserveUnknownFields
// +kubebuilder:validation:XValidation:rule="!(has(self.webhook) && has(self.rego))",message="a hook is a webhook or a policy in rego, not both"
type Hook struct {
	// Version is the version of the protocol: v1 or v2. Default: v1.
	// +optional
	// +kubebuilder:validation:Enum=v1;v2
	Version string `json:"version,omitempty"`
	// Webhook is a web server.
	// +optional
	Webhook *Webhook `json:"webhook,omitempty"`
	// Rego is a policy that admitkit evaluates itself.
	// +optional
	Rego *Rego `json:"rego,omitempty"`
}

// Rego is a hook that is a policy in Rego: from a ConfigMap, or inline.
// +kubebuilder:validation:XValidation:rule="has(self.configMap) != (has(self.inline) && size(self.inline) > 0)",message="exactly one of configMap and inline is needed"
type Rego struct {
	// ConfigMap has the policy.
	// +optional
	ConfigMap *KeyReference `json:"configMap,omitempty"`
	// Inline is the policy itself.
	// +optional
	// +kubebuilder:validation:MaxLength=262144
	Inline string `json:"inline,omitempty"`
	// Query is what is evaluated; its value is the response. Default: data.controller.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Query string `json:"query,omitempty"`
	// Version is the version of the language. Default: v1.
	// +optional
	// +kubebuilder:validation:Enum=v0;v1
	Version string `json:"version,omitempty"`
}

// KeyReference names a key of a ConfigMap or a Secret.
type KeyReference struct {
	// Name is the object's name.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Namespace is its namespace: one of those that the operator may read.
	// +kubebuilder:validation:MinLength=1
	Namespace string `json:"namespace"`
	// Key is the key in its data. The default depends on the field.
	// +optional
	Key string `json:"key,omitempty"`
}

// ObjectReference names a Secret.
type ObjectReference struct {
	// Name is the object's name.
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Namespace is its namespace: one of those that the operator may read.
	// +kubebuilder:validation:MinLength=1
	Namespace string `json:"namespace"`
}

// Webhook is a hook that is a web server: url, or service and path.
// +kubebuilder:pruning:PreserveUnknownFields
type Webhook struct {
	// URL is where requests are sent. If it is set, path and service have no effect.
	// +optional
	URL *string `json:"url,omitempty"`
	// Timeout is how long a call may take. Default: 10s.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
	// Path is the path of the URL, with service.
	// +optional
	Path *string `json:"path,omitempty"`
	// Service is the Service to which requests are sent.
	// +optional
	Service *ServiceReference `json:"service,omitempty"`
	// Etag says whether a response is used again when the hook says that it is the same.
	// +optional
	Etag *Etag `json:"etag,omitempty"`
	// ResponseUnMarshallMode is loose, or strict, where fields that the protocol does not
	// have are an error, and duplicate ones. Default: loose in v1, strict in v2.
	// +optional
	// +kubebuilder:validation:Enum=loose;strict
	ResponseUnMarshallMode string `json:"responseUnMarshallMode,omitempty"`
	// Connection is how to connect.
	Connection `json:",inline"`
}

// Connection says whom to trust, and as whom to connect.
type Connection struct {
	// CABundle are the authorities that may have signed the server's certificate.
	// Default: the system's.
	// +optional
	CABundle *CABundle `json:"caBundle,omitempty"`
	// Authorization is sent in the header Authorization.
	// +optional
	Authorization *Authorization `json:"authorization,omitempty"`
	// BasicAuth is sent in the header Authorization.
	// +optional
	BasicAuth *BasicAuth `json:"basicAuth,omitempty"`
	// ClientTLS is the certificate that is shown to the server.
	// +optional
	ClientTLS *ClientTLS `json:"clientTLS,omitempty"`
}

// EndpointConfig is how to connect to all webhooks of a host.
// +kubebuilder:pruning:PreserveUnknownFields
type EndpointConfig struct {
	// Host is the host of the URL, with its port unless that is the scheme's own.
	// +optional
	Host string `json:"host,omitempty"`
	// Connection is how to connect. It has no effect on a webhook that has any of its fields
	// itself.
	Connection `json:",inline"`
}

// CABundle are certificates in PEM: exactly one of the fields.
type CABundle struct {
	// Inline are the certificates themselves.
	// +optional
	Inline string `json:"inline,omitempty"`
	// SecretRef is where they are. Its key is by default ca.crt.
	// +optional
	SecretRef *KeyReference `json:"secretRef,omitempty"`
	// ConfigMapRef is where they are. Its key is by default ca.crt.
	// +optional
	ConfigMapRef *KeyReference `json:"configMapRef,omitempty"`
}

// Authorization is a credential of any type but Basic, for which there is basicAuth.
type Authorization struct {
	// Type is the type of the credentials. Default: Bearer.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Type string `json:"type,omitempty"`
	// SecretRef has them. Its key is by default token.
	SecretRef *KeyReference `json:"secretRef"`
}

// BasicAuth is a name and a password.
type BasicAuth struct {
	// SecretRef names a Secret, such as one of the type kubernetes.io/basic-auth.
	SecretRef *ObjectReference `json:"secretRef"`
	// UsernameKey is the key of the name. Default: username.
	// +optional
	UsernameKey string `json:"usernameKey,omitempty"`
	// PasswordKey is the key of the password. Default: password.
	// +optional
	PasswordKey string `json:"passwordKey,omitempty"`
}

// ClientTLS is a certificate and its key.
type ClientTLS struct {
	// SecretRef names a Secret, such as one of the type kubernetes.io/tls.
	SecretRef *ObjectReference `json:"secretRef"`
	// CertKey is the key of the certificate. Default: tls.crt.
	// +optional
	CertKey string `json:"certKey,omitempty"`
	// PrivateKeyKey is the key of the private key. Default: tls.key.
	// +optional
	PrivateKeyKey string `json:"privateKeyKey,omitempty"`
}

// ServiceReference names a Service.
type ServiceReference struct {
	// Name is its name.
	Name string `json:"name"`
	// Namespace is its namespace.
	Namespace string `json:"namespace"`
	// Port is its port. Default: 80.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port *int32 `json:"port,omitempty"`
	// Protocol is http or https. Default: http.
	// +optional
	Protocol *string `json:"protocol,omitempty"`
}

// Etag says whether and how long a response is kept to be used again.
type Etag struct {
	// Enabled says whether. Default: false.
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// CacheTimeoutSeconds is how long a response is kept. Default: 1200.
	// +optional
	CacheTimeoutSeconds *int32 `json:"cacheTimeoutSeconds,omitempty"`
	// CacheCleanupSeconds is for Metacontroller. Here a response goes when it is too old.
	// +optional
	CacheCleanupSeconds *int32 `json:"cacheCleanupSeconds,omitempty"`
}
