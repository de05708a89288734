package intercept_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

// BenchmarkRequest measures the cost of interception: the same request directly to
// the host, intercepted, intercepted with the response masked, and judged by 300
// request rules of which the last allows it.
func BenchmarkRequest(b *testing.B) {
	judged := grant(engi.GrantBearer, token)
	for i := range 299 {
		judged.Requests = append(judged.Requests, engi.RequestRule{Host: host, Methods: []string{"GET", "POST"}, Path: fmt.Sprintf("/v1/*/%d/**", i)})
	}
	judged.Requests = append(judged.Requests, engi.RequestRule{Host: host, Methods: []string{"GET"}, Path: "/"})
	for name, p := range map[string]engi.NetworkPolicy{"straight": {}, "granted": grant(engi.GrantBearer, token), "stripped": grant(engi.GrantBearer, token, strip), "judged": judged} {
		b.Run(name, func(b *testing.B) {
			f := newFixture(b, p)
			s := f.upstream(host, true, func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "fine") })
			t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: f.ca.pool}, ForceAttemptHTTP2: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", s.Listener.Addr().String())
			}}
			b.Cleanup(t.CloseIdleConnections)
			c, url := &http.Client{Transport: t}, "https://"+host+"/"
			if len(p.Grants) > 0 {
				c = f.client(true)
			}
			for b.Loop() {
				res, err := c.Get(url)
				if err != nil {
					b.Fatal(err)
				}
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
		})
	}
}
