package store

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/access/ssh"
	"github.com/engi-dev/engi/internal/engi"
)

// sshKeyStore implements [ssh.Store].
type sshKeyStore struct {
	table[engi.SSHKey, engi.SSHKeyID]
}

var _ ssh.Store = sshKeyStore{}

// SSHKeys returns the store of SSH keys.
func SSHKeys(db *DB) ssh.Store {
	return sshKeyStore{table[engi.SSHKey, engi.SSHKeyID]{
		db: db, name: "ssh_keys", noun: "SSH key", columns: `id, owner, name, public_key, fingerprint, created, used`,
		fields: func(k *engi.SSHKey) []any {
			return []any{&k.ID, &k.Owner, &k.Name, &k.PublicKey, &k.Fingerprint, (*stamp)(&k.Created), (*stamp)(&k.Used)}
		},
		missing: engi.Errorf(engi.NotFound, "no such SSH key"),
		exists:  engi.Errorf(engi.Conflict, "the node has this public key already").WithRemedy("delete it there first, or make another with 'ssh-keygen -t ed25519'"),
	}}
}

// sshKeyEvent returns the data of events about an SSH key.
func sshKeyEvent(k engi.SSHKey) any {
	return map[string]any{"name": k.Name, "fingerprint": k.Fingerprint}
}

func (s sshKeyStore) Put(ctx context.Context, k engi.SSHKey, most int) error {
	return s.db.tx(ctx, func(t *tx) error {
		n, err := s.count(ctx, t, k.Owner)
		if err != nil {
			return err
		}
		if n >= most {
			return engi.Errorf(engi.Exhausted, "this owner has %d SSH keys, which is the limit", n).WithRemedy("delete an unused one")
		}
		if err := s.put(ctx, t, &k); err != nil {
			return err
		}
		return s.record(ctx, t, &k, engi.EventSSHKeyCreated, sshKeyEvent(k))
	})
}

func (s sshKeyStore) Find(ctx context.Context, fingerprint string) (engi.SSHKey, error) {
	return s.one(ctx, s.db.read, when(`fingerprint = ?`, fingerprint))
}

func (s sshKeyStore) Used(ctx context.Context, id engi.SSHKeyID, at time.Time) error {
	_, err := s.db.exec(ctx, `UPDATE ssh_keys SET used = ? WHERE id = ?`, nanos(at), id)
	return err
}

func (s sshKeyStore) Remove(ctx context.Context, viewer engi.Viewer, id engi.SSHKeyID) error {
	return s.remove(ctx, seen(viewer, `id = ?`, id), engi.EventSSHKeyDeleted, sshKeyEvent)
}
