package client_test

import (
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/client"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/test/apitest"
)

// TestNetworkEventsSurviveBrokenConnections cuts every stream after a few
// bytes more than the one before.
func TestNetworkEventsSurviveBrokenConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		world := apitest.New(nil)
		defer world.Close()
		ctx := t.Context()
		x, err := world.Executions.Start(ctx, engi.ExecutionSpec{Owner: "ann", Program: engi.Program{
			Language: engi.Bash, Files: []engi.SourceFile{{Path: "main.sh", Data: []byte("sleep 60s")}}, Entry: "main.sh"}})
		if err != nil {
			t.Fatal(err)
		}
		const n = 40
		for range n {
			if err := world.Networks.Add(ctx, x.Sandbox, engi.NetworkRecord{Kind: engi.NetworkLookup, Host: "a.example.com"}); err != nil {
				t.Fatal(err)
			}
		}
		streams := 0
		w := &wire{handler: world.Handler, cut: func(*http.Request) int { streams++; return 300 + 37*streams }}
		defer w.served.Wait()
		c := client.New("http://localhost", world.User, client.WithHTTPClient(&http.Client{Transport: w}))
		var seen int64
		for e, err := range c.WatchNetwork(ctx, string(x.Sandbox), 0) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Seq != seen+1 || e.Type != v1.NetworkLookup {
				t.Fatalf("event %d follows %d", e.Seq, seen)
			}
			if seen = e.Seq; seen == n {
				break
			}
		}
		if seen != n || streams < 3 {
			t.Errorf("%d events on %d streams", seen, streams)
		}
	})
}
