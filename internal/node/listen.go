package node

import (
	"context"
	"os"
	"path/filepath"
	"syscall"

	"github.com/engi-dev/engi/internal/network/cert"
	"github.com/engi-dev/engi/internal/node/datadir"
	"github.com/engi-dev/engi/internal/node/listener"
	"github.com/engi-dev/engi/internal/server/rest"
)

// listen opens the addresses of the configuration.
func (n *Node) listen(ctx context.Context) (err error) {
	c := n.config
	most := maxConns()
	n.listener, err = listener.Open(ctx, listener.Options{
		Conns: most, ConnsPerHost: most / 4,
		Listen: c.Listen, Secure: c.TLS.Listen, TLS: c.TLS.On(), Log: n.log.With("component", "http"),
		Cert: cert.Options{
			Cert: c.TLS.Cert, Key: c.TLS.Key, Log: n.log.With("component", "tls"),
			ACME: cert.ACME{Names: c.TLS.ACMENames, Email: c.TLS.ACMEEmail, Directory: c.TLS.ACMEDirectory, Dir: filepath.Join(c.DataDir, "acme")},
		},
	})
	if err == nil {
		n.closers.Add(n.listener.Close)
	}
	return err
}

// maxConns returns the maximum number of client connections: half of the descriptors of
// this process, so that the rest is available for sandboxes and files.
func maxConns() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0 // the process has no known limit
	}
	return int(min(limit.Cur/2, 1<<20))
}

// Endpoint returns the addresses of the node.
func (n *Node) Endpoint() datadir.Endpoint {
	return datadir.Endpoint{
		URL: n.listener.URL(), PID: os.Getpid(), Version: n.version, Started: n.started,
		DataDir: n.config.DataDir, KeyFile: filepath.Join(n.config.DataDir, datadir.KeyName),
	}
}

// serve publishes the endpoint and serves HTTP until ctx ends.
func (n *Node) serve(ctx context.Context, ready func()) error {
	if err := datadir.Publish(n.config.DataDir, n.Endpoint()); err != nil {
		return err
	}
	defer os.Remove(filepath.Join(n.config.DataDir, datadir.EndpointName))
	return n.listener.Serve(ctx, rest.NewServer(n.handler, n.log.With("component", "http")), n.leave, ready)
}
