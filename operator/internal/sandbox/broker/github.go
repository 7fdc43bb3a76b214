package broker

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/admitkit/admitkit/operator/api/v1alpha1"
)

const (
	// tokenLife is how long GitHub's installation tokens last, and a little for its clock.
	tokenLife = time.Hour + time.Minute
	// jwtLife is less than GitHub's limit of 10 minutes, and jwtSkew what it advises.
	jwtLife, jwtSkew = 5 * time.Minute, time.Minute
	githubTimeout    = 8 * time.Second
	maxGitHubAnswer  = 1 << 20
)

// githubProvider makes installation tokens of a GitHub App, and revokes them by themselves.
type githubProvider struct {
	live  client.Reader
	url   string
	http  *http.Client
	clock clock.PassiveClock
}

func newGitHub(live client.Reader, options *Options, clock clock.PassiveClock) *githubProvider {
	return &githubProvider{live: live, url: options.GitHubURL, clock: clock, http: &http.Client{
		Transport: options.GitHubTransport, Timeout: githubTimeout,
		// A redirect would take the key's signature, or a token, elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (p *githubProvider) keys(context.Context, string, *v1alpha1.CredentialGrant) ([]string, bool, error) {
	return nil, false, nil
}

func (p *githubProvider) life() time.Duration { return tokenLife }

func (p *githubProvider) issue(ctx context.Context, grant *v1alpha1.CredentialGrant, lease *v1alpha1.CredentialLease) (string, []byte, error) {
	app := grant.GitHubApp
	text, err := readKey(ctx, p.live, lease.Spec.Run.Namespace, app.PrivateKey)
	if err != nil {
		return "", nil, err
	}
	jwt, err := p.sign(app.AppID, []byte(text))
	if err != nil {
		return "", nil, fmt.Errorf("Secret %s/%s, key %s: %w", lease.Spec.Run.Namespace, app.PrivateKey.Name, app.PrivateKey.Key, err)
	}
	body, err := json.Marshal(map[string]any{"repositories": app.Repositories, "permissions": app.Permissions})
	if err != nil {
		return "", nil, err
	}
	answer, err := p.call(ctx, http.MethodPost, "/app/installations/"+strconv.FormatInt(app.InstallationID, 10)+"/access_tokens", jwt, body, http.StatusCreated)
	if err != nil {
		return "", nil, err
	}
	var made struct {
		Token string `json:"token"`
	}
	if json.Unmarshal(answer, &made) != nil || made.Token == "" {
		return "", nil, fmt.Errorf("GitHub's answer has no token in it: %w", errUnknown)
	}
	return made.Token, []byte(made.Token), nil
}

// sign makes the JWT with which an App authenticates itself: RS256, and short.
func (p *githubProvider) sign(appID int64, key []byte) (string, error) {
	block, _ := pem.Decode(key)
	if block == nil {
		return "", errors.New("it is not a key in PEM")
	}
	private, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		ofRSA, ok := parsed.(*rsa.PrivateKey)
		if err != nil || !ok {
			return "", errors.New("it is not an RSA key, of PKCS #1 or PKCS #8")
		}
		private = ofRSA
	}
	now := p.clock.Now()
	claims, err := json.Marshal(map[string]any{"iat": now.Add(-jwtSkew).Unix(), "exp": now.Add(jwtLife).Unix(), "iss": strconv.FormatInt(appID, 10)})
	if err != nil {
		return "", err
	}
	signed := encode([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + encode(claims)
	sum := sha256.Sum256([]byte(signed))
	signature, err := rsa.SignPKCS1v15(rand.Reader, private, crypto.SHA256, sum[:])
	if err != nil {
		return "", errors.New("the key cannot sign: is it of at least 1024 bits?")
	}
	return signed + "." + encode(signature), nil
}

func encode(part []byte) string { return base64.RawURLEncoding.EncodeToString(part) }

// revoke has GitHub revoke a token. One that it does not know has ended.
func (p *githubProvider) revoke(ctx context.Context, _ *v1alpha1.CredentialLease, handle []byte) error {
	if handle == nil {
		return errors.New("the broker stopped before it stored a token: if GitHub made one, nobody has it, and it ends by itself")
	}
	_, err := p.call(ctx, http.MethodDelete, "/installation/token", string(handle), nil, http.StatusNoContent)
	if failure := (*githubError)(nil); errors.As(err, &failure) && failure.status == http.StatusUnauthorized {
		return nil
	}
	return err
}

// githubError is an answer that was not expected. It has nothing of the answer's text but
// GitHub's message.
type githubError struct {
	status  int
	message string
}

func (e *githubError) Error() string {
	return fmt.Sprintf("GitHub answers %d %s: %.200q", e.status, http.StatusText(e.status), e.message)
}

func (p *githubProvider) call(ctx context.Context, method, path, token string, body []byte, want int) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	req.Header.Set("User-Agent", "admitkit")
	resp, err := p.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("calling GitHub: %w; %w", err, errUnknown)
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxGitHubAnswer))
	if err != nil {
		return nil, fmt.Errorf("reading GitHub's answer: %w; %w", err, errUnknown)
	}
	if resp.StatusCode != want {
		failure := &githubError{status: resp.StatusCode}
		var said struct {
			Message string `json:"message"`
		}
		if json.Unmarshal(answer, &said) == nil {
			failure.message = said.Message
		}
		return nil, failure
	}
	return answer, nil
}
