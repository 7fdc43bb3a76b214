package limits

import (
	"net"
	"testing"
	"testing/synctest"

	"go.uber.org/zap"
)

// pipes is a listener to which somebody connects again and again.
type pipes struct{ net.Listener }

func (pipes) Accept() (net.Conn, error) {
	server, _ := net.Pipe()
	return &addressed{server}, nil
}

func (pipes) Close() error { return nil }

// addressed is a pipe with an address that a log can have.
type addressed struct{ net.Conn }

func (addressed) RemoteAddr() net.Addr { return &net.TCPAddr{} }

func TestAConnectionWaitsUntilOthersThatWereClosedForItHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := NewConnections(pipes{}, 8, zap.NewNop())
		var served []net.Conn
		accept := func() {
			conn, err := listener.Accept()
			if err != nil {
				t.Error(err)
			}
			served = append(served, conn)
		}
		for range 8 + 2 { // two too many
			accept()
		}
		go accept()
		synctest.Wait()
		if len(served) != 10 {
			t.Fatal("a connection is accepted although two that were closed are still served")
		}
		if err := served[0].Close(); err != nil { // as the server does when it has noticed
			t.Error(err)
		}
		synctest.Wait()
		if len(served) != 11 {
			t.Fatal("no connection is accepted although one has ended")
		}
		go accept()
		synctest.Wait()
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if len(served) != 12 {
			t.Error("Accept waits although the listener is closed")
		}
	})
}
