package store

import (
	"context"
	"time"

	"github.com/engi-dev/engi/internal/access/ssh"
	"github.com/engi-dev/engi/internal/engi"
)

// sshKeyStore implements [ssh.Store].
type sshKeyStore struct{ db *DB }

var _ ssh.Store = sshKeyStore{}

// SSHKeys returns the store of SSH keys.
func SSHKeys(db *DB) ssh.Store { return sshKeyStore{db} }

const sshKeyColumns = `id, owner, name, public_key, fingerprint, created, used`

func (s sshKeyStore) Put(ctx context.Context, k engi.SSHKey, most int) error {
	return s.db.tx(ctx, func(t *tx) error {
		n, err := first(ctx, t, errNoSSHKey, value[int], `SELECT COUNT(*) FROM ssh_keys WHERE owner = ?`, k.Owner)
		if err != nil {
			return err
		}
		if n >= most {
			return engi.Errorf(engi.Exhausted, "this owner has %d SSH keys, which is the limit", n).WithRemedy("delete an unused one")
		}
		_, err = t.exec(ctx, `INSERT INTO ssh_keys (`+sshKeyColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?)`,
			k.ID, k.Owner, k.Name, k.PublicKey, k.Fingerprint, nanos(k.Created), nanos(k.Used))
		if engi.Is(err, engi.Conflict) {
			return engi.Errorf(engi.Conflict, "the node has this public key already").WithRemedy("delete it there first, or make another with 'ssh-keygen -t ed25519'")
		}
		if err != nil {
			return err
		}
		return t.record(ctx, k.Owner, string(k.ID), engi.EventSSHKeyCreated, map[string]any{"name": k.Name, "fingerprint": k.Fingerprint})
	})
}

var errNoSSHKey = engi.Errorf(engi.NotFound, "no such SSH key")

func (s sshKeyStore) Find(ctx context.Context, fingerprint string) (engi.SSHKey, error) {
	return first(ctx, s.db.read, errNoSSHKey, scanSSHKey, `SELECT `+sshKeyColumns+` FROM ssh_keys WHERE fingerprint = ?`, fingerprint)
}

func (s sshKeyStore) Get(ctx context.Context, viewer engi.Viewer, id engi.SSHKeyID) (engi.SSHKey, error) {
	return first(ctx, s.db.read, errNoSSHKey, scanSSHKey, `SELECT `+sshKeyColumns+` FROM ssh_keys WHERE id = ? AND (? = '*' OR owner = ?)`, id, viewer, viewer)
}

func (s sshKeyStore) List(ctx context.Context, viewer engi.Viewer, p engi.Paging) ([]engi.SSHKey, error) {
	var w where
	w.owned(viewer)
	return listPage(ctx, s.db, p, scanSSHKey, sshKeyColumns, `ssh_keys`, w, false, `seq`)
}

func (s sshKeyStore) Used(ctx context.Context, id engi.SSHKeyID, at time.Time) error {
	return s.db.tx(ctx, func(t *tx) error {
		_, err := t.exec(ctx, `UPDATE ssh_keys SET used = ? WHERE id = ?`, nanos(at), id)
		return err
	})
}

func (s sshKeyStore) Remove(ctx context.Context, viewer engi.Viewer, id engi.SSHKeyID) error {
	return change(ctx, s.db, errNoSSHKey, scanSSHKey, func(t *tx, k engi.SSHKey) error {
		return t.record(ctx, k.Owner, string(id), engi.EventSSHKeyDeleted, map[string]any{"name": k.Name, "fingerprint": k.Fingerprint})
	}, `DELETE FROM ssh_keys WHERE id = ? AND (? = '*' OR owner = ?) RETURNING `+sshKeyColumns, id, viewer, viewer)
}

func scanSSHKey(row scanner) (k engi.SSHKey, err error) {
	return k, row.Scan(&k.ID, &k.Owner, &k.Name, &k.PublicKey, &k.Fingerprint, (*stamp)(&k.Created), (*stamp)(&k.Used))
}
