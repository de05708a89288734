package rest

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/preview"
)

// A PortService returns the ports of sandboxes and their addresses.
type PortService interface {
	// Listening returns the ports on which programs in a sandbox listen,
	// lowest first; Conflict if the sandbox is not awake.
	Listening(ctx context.Context, viewer engi.Viewer, id engi.SandboxID) ([]preview.Port, error)
	// URL returns the public address of a port.
	URL(id engi.SandboxID, port int) string
	// Sign returns an address that opens a private port until the address expires.
	Sign(id engi.SandboxID, port int, good time.Duration) (address string, expires time.Time, err error)
	PageService
	WorkspacePreviews
}

type aPort struct {
	aSandbox
	Port int `path:"port" minimum:"1" maximum:"65535" doc:"TCP port in the sandbox"`
}

// Ports returns the routes of sandboxes' ports; service may
// be nil.
func Ports(service PortService, sandboxes engi.Sandboxes) Resource {
	const path = sandboxPath + "/{id}/ports"
	absent := missing(service != nil, "previews of ports")
	return Resource{tag: "sandboxes", routes: []Route{
		list(Route{
			Pattern: "GET " + path, ID: "list-ports", Summary: "List the listening ports of a sandbox", Access: reads(engi.ScopeSandboxes), missing: absent,
			Text: "Each port has the URL of its preview. This does not resume a sandbox: if the sandbox is not running, the answer is a conflict.",
		}, func(c *call, in *aSandbox) ([]preview.Port, error) { return service.Listening(c, c.viewer(), in.ID) },
			func(x preview.Port) v1.Port {
				return v1.Port{Port: x.Port, Listening: true, Process: strings.ToValidUTF8(x.Process, "\uFFFD"), URL: x.URL}
			}),
		fetch(Route{
			Pattern: "GET " + path + "/{port}", ID: "get-port", Summary: "Get a port of a sandbox", Access: reads(engi.ScopeSandboxes),
		}, func(c *call, in *aPort) (v1.Port, error) {
			g, release, err := sandboxes.Enter(c, c.viewer(), in.ID)
			if err != nil {
				return v1.Port{}, err
			}
			defer release()
			p := v1.Port{Port: in.Port}
			// Connecting to the port is cheaper than listing all ports.
			conn, err := g.Dial(c, in.Port)
			switch {
			case err == nil:
				conn.Close()
				p.Listening = true
			case !engi.Is(err, engi.Unavailable):
				return p, err
			}
			if service != nil {
				p.URL = service.URL(in.ID, in.Port)
			}
			return p, nil
		}),
		send(Route{
			Pattern: "POST " + path + "/{port}/link", ID: "link-port", Summary: "Create a link to a private port", Access: writes(engi.ScopeSandboxes), missing: absent,
			Text:   "Everybody who has the link can use the port until the link expires. The body is optional.",
			Status: http.StatusCreated, Optional: true,
		}, func(c *call, in *aPort, q v1.LinkRequest) (v1.Link, error) {
			if _, err := sandboxes.Get(c, c.viewer(), in.ID); err != nil {
				return v1.Link{}, err
			}
			address, expires, err := service.Sign(in.ID, in.Port, goodFor(q))
			return v1.Link{URL: address, ExpiresAt: expires.UTC()}, err
		}),
	}}
}
