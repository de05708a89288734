package v1

import "time"

// An SSHKeyRequest adds a public key.
type SSHKeyRequest struct {
	PublicKey string `json:"public_key" minLength:"1" maxLength:"16384" doc:"Line of authorized_keys, like the content of id_ed25519.pub: ed25519, ECDSA, RSA of at least 2048 bits, or a key on a security token" example:"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHJ5bW1lcyBhcmUgbm90IHNlY3JldHMsIG9idmlv me@laptop"`
	Name      string `json:"name,omitempty" maxLength:"100" doc:"Name, for people; absent means the comment of the line" example:"laptop"`
}

// An SSHServer holds the settings of the node's SSH server.
type SSHServer struct {
	Address     string `json:"address,omitempty" doc:"Address of the SSH server; absent if SSH is available over HTTP only" example:"127.0.0.1:2222"`
	HostKey     string `json:"host_key" doc:"Type and base64, as in known_hosts" example:"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDzGJ4hqzqI1bQ6cJ0dWFnBsCHzM1Y0Zc0xX1mDk3p5v"`
	Fingerprint string `json:"fingerprint" example:"SHA256:uNiVztksCsDhcc0u9e8BrqK0hSaSn9Fv2zXdS9oy0zQ"`
}

// An SSHKey gives the holder of its private key access to sessions, sandboxes and
// workspaces of its owner over SSH.
type SSHKey struct {
	ID          string     `json:"id" example:"ssh_u2dmwmlezjgprkqrgppgcz2mgu"`
	Owner       string     `json:"owner,omitempty"`
	Name        string     `json:"name,omitempty"`
	PublicKey   string     `json:"public_key"`
	Fingerprint string     `json:"fingerprint" doc:"Fingerprint, as ssh-keygen -l shows it; unique on a node" example:"SHA256:uNiVztksCsDhcc0u9e8BrqK0hSaSn9Fv2zXdS9oy0zQ"`
	CreatedAt   time.Time  `json:"created_at"`
	UsedAt      *time.Time `json:"used_at,omitempty" doc:"Time of the last login; absent means never"`
}
