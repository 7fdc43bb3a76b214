package main

// The image has no root certificates, without which the sink of CloudEvents could
// verify no endpoint. Mozilla's are used where the system has none. They are as
// old as the build; those that SSL_CERT_FILE or SSL_CERT_DIR name take their
// place.
import _ "golang.org/x/crypto/x509roots/fallback"
