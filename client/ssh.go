package client

import (
	"context"
	"net"
	"net/url"

	"github.com/engi-dev/engi/api/v1"
)

const sshKeys = "/v1/ssh-keys"

// CreateSSHKey adds a public key. A broken connection adds no second key.
func (c *Client) CreateSSHKey(ctx context.Context, q v1.SSHKeyRequest) (v1.SSHKey, error) {
	return create[v1.SSHKey](ctx, c, sshKeys, q)
}

// SSHKeys returns SSH keys, oldest first.
func (c *Client) SSHKeys(ctx context.Context) ([]v1.SSHKey, error) {
	return all[v1.SSHKey](ctx, c, sshKeys, nil)
}

// SSHKey returns one SSH key.
func (c *Client) SSHKey(ctx context.Context, id string) (v1.SSHKey, error) {
	return get[v1.SSHKey](ctx, c, sshKeys+segment(id), nil)
}

// DeleteSSHKey deletes an SSH key; its connections end.
func (c *Client) DeleteSSHKey(ctx context.Context, id string) error {
	return c.remove(ctx, sshKeys+segment(id))
}

// SSHServer returns the settings of the node's SSH server.
func (c *Client) SSHServer(ctx context.Context) (v1.SSHServer, error) {
	return get[v1.SSHServer](ctx, c, "/v1/ssh-server", nil)
}

// SSH opens a connection to the SSH server, for an SSH client. target is
// a session, a sandbox or a workspace; if it is empty, the name of the SSH user is the target. SSH requires
// no SSH key, since the API key authenticates the connection. ctx limits the opening only.
func (c *Client) SSH(ctx context.Context, target string) (net.Conn, error) {
	return c.stream(ctx, "/v1/ssh", url.Values{"target": {target}})
}
