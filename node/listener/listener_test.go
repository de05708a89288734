package listener

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/engi-dev/engi"
)

func open(t *testing.T, o Options) *Listener {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	f, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

func TestRequestsInHandEnd(t *testing.T) {
	f := open(t, Options{Listen: "127.0.0.1:0"})
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cancel() // the node is told to end
		<-left   // what waits is woken
		io.WriteString(w, "whole")
	})}
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- f.Serve(ctx, s, func() { close(left) }, func() { close(ready) }) }()
	<-ready
	if scheme, port := f.Outside(); f.URL() != scheme+"://127.0.0.1:"+port {
		t.Errorf("%s, outside %s %s", f.URL(), scheme, port)
	}
	res, err := http.Get(f.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != "whole" {
		t.Errorf("%q, %v", b, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestListenersThatFail(t *testing.T) {
	f := open(t, Options{Listen: "127.0.0.1:0"})
	_, err := Open(t.Context(), Options{Listen: strings.TrimPrefix(f.URL(), "http://")})
	if engi.KindOf(err) != engi.Conflict || !strings.Contains(engi.RemedyOf(err), "--listen") {
		t.Errorf("a taken address: %v", err)
	}
	if _, err := Open(t.Context(), Options{Listen: "127.0.0.1:0", Secure: "127.0.0.1:0", TLS: true}); engi.KindOf(err) != engi.Invalid || err == nil {
		t.Errorf("no certificate: %v", err)
	}
	left := false
	f.Close()
	if err := f.Serve(t.Context(), new(http.Server), func() { left = true }, func() {}); engi.KindOf(err) != engi.Internal || err == nil || !left {
		t.Errorf("a listener that is gone: %v, left %t", err, left)
	}
}
