package broker

import (
	"fmt"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
	"github.com/admitkit/admitkit/operator/internal/sandbox/broker/protocol"
)

// refuse makes the answer that refuses.
func refuse(status int, code protocol.Code, format string, args ...any) *protocol.Error {
	return &protocol.Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

// later is refuse for what may be asked again after some seconds.
func later(status int, code protocol.Code, seconds int, format string, args ...any) *protocol.Error {
	refusal := refuse(status, code, format, args...)
	refusal.RetryAfter = time.Duration(seconds) * time.Second
	return refusal
}

// unavailable logs what failed here, of which the caller need not know the details.
func (b *service) unavailable(doing string, err error) error {
	b.log.Warn("cannot answer", zap.String("doing", doing), zap.Error(err))
	return later(http.StatusServiceUnavailable, protocol.CodeUnavailable, 1, "%s failed; ask again", doing)
}

// providerFailed says that a provider made no credential. Its errors have names, and no values.
func (b *service) providerFailed(grant *v1alpha1.CredentialGrant, err error) error {
	b.log.Warn("a provider made no credential", zap.String("credential", grant.Name), zap.String("provider", string(providerOf(grant))), zap.Error(err))
	return later(http.StatusServiceUnavailable, protocol.CodeProviderFailed, 5, "credential %s: %v", grant.Name, err)
}
