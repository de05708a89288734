package rest

import (
	"context"
	"net"
	"net/http"

	"github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/access/ssh"
	"github.com/engi-dev/engi/internal/engi"
)

// openSSH holds the parameters of a connection.
type openSSH struct {
	Target string `query:"target" maxLength:"256" doc:"ID or name of a session, ID of a sandbox, or the name in its metadata; absent means the SSH user name"`
}

// SSH returns the routes for SSH connections and for owners' public keys.
func SSH(service *ssh.Server) Resource {
	var keys engi.SSHKeys = service
	const path = "/v1/ssh-keys"
	look, change := reads(engi.ScopeKeys), writes(engi.ScopeKeys)
	grant := change
	grant.Also = engi.ScopeSandboxes // a caller may not grant rights that its own key lacks
	return Resource{tag: "ssh", about: "SSH into sessions, sandboxes and workspaces, and the public keys of owners", routes: []Route{
		create(Route{
			Pattern: "POST " + path, ID: "create-ssh-key", Summary: "Add an SSH key", Access: grant,
			Text: "The holder of the private key can use the caller's sessions, sandboxes and workspaces over SSH until the key is deleted or no API key of the owner has access to sandboxes. " +
				"Also needs the scope sandboxes. A node accepts a public key once: a key that any owner has added is a conflict.",
			Creates: "a repeated key returns the first SSH key instead of adding another",
			Bodies: []example{{"a laptop", "the key of a laptop",
				`{"public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDzGJ4hqzqI1bQ6cJ0dWFnBsCHzM1Y0Zc0xX1mDk3p5v me@laptop", "name": "laptop"}`}},
		}, engi.NewSSHKeyID, func(c *call, _ *none, id engi.SSHKeyID, q v1.SSHKeyRequest) (engi.SSHKey, error) {
			return service.Create(c, engi.SSHKey{ID: id, Owner: c.owner(), Name: q.Name, PublicKey: q.PublicKey})
		}, func(c *call, id engi.SSHKeyID) (engi.SSHKey, error) { return service.Get(c, c.viewer(), id) }, sshKeyOf),
		paged(Route{Pattern: "GET " + path, ID: "list-ssh-keys", Summary: "List SSH keys", Text: "The oldest come first.", Access: look}, paging(keys, engi.SSHKeys.List), sshKeyOf, func(x v1.SSHKey) string { return x.ID }),
		fetch(Route{Pattern: "GET " + path + "/{id}", ID: "get-ssh-key", Summary: "Get an SSH key", Access: look}, getting(keys, engi.SSHKeys.Get, sshKeyOf)),
		act(Route{Pattern: "DELETE " + path + "/{id}", ID: "delete-ssh-key", Summary: "Delete an SSH key", Text: "Connections that were opened with the key are closed.", Access: change}, ending(keys, engi.SSHKeys.Remove)),
		raw(Route{
			Pattern: "GET /v1/ssh", ID: "open-ssh", Summary: "Connect over SSH", Access: writes(engi.ScopeSandboxes),
			Text: "A WebSocket that carries one SSH connection in binary messages, in both directions; message boundaries have no meaning. " +
				"The API key authenticates the caller, so SSH asks for no key (its method is 'none'). The connection ends when the API key is revoked or expires.",
			Answers: []answer{{status: http.StatusSwitchingProtocols, headers: map[string]string{"Upgrade": "websocket"}}},
		}, func(c *call, in *openSSH, _ none) error { return serveSSH(c, service, in.Target) }),
		fetch(Route{
			Pattern: "GET /v1/ssh-server", ID: "get-ssh-server", Summary: "Get the SSH address and host key", Access: reads(engi.ScopeSandboxes), Objects: Shared,
			Text: "Includes the host key for known_hosts.",
		}, func(*call, *none) (v1.SSHServer, error) {
			line, fingerprint := service.HostKey()
			return v1.SSHServer{Address: service.Addr(), HostKey: line, Fingerprint: fingerprint}, nil
		}),
	}}
}

// serveSSH passes a WebSocket to the SSH server.
func serveSSH(c *call, service *ssh.Server, target string) error {
	return carry(c, "SSH comes over a WebSocket", "connect with 'engi ssh', or a WebSocket client", func(ctx context.Context, accept func() net.Conn) error {
		conn := accept()
		if conn == nil {
			return nil
		}
		return service.Serve(ctx, conn, ssh.Caller{Viewer: c.viewer(), Target: target, Actor: c.auth.ID})
	})
}

func sshKeyOf(x engi.SSHKey) v1.SSHKey {
	return v1.SSHKey{
		ID: string(x.ID), Owner: string(x.Owner), Name: x.Name, PublicKey: x.PublicKey, Fingerprint: x.Fingerprint,
		CreatedAt: x.Created.UTC(), UsedAt: moment(x.Used),
	}
}
