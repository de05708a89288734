package store

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// A Sealer encrypts values and binds them to a purpose. Encrypted values begin
// with the fingerprint of the key. [secret.Service] implements it.
type Sealer interface {
	Seal(purpose, value string) []byte
	Unseal(purpose string, sealed []byte) (string, error)
}

// fingerprintSize is the length of a key's fingerprint.
const fingerprintSize = 16

// sealedPart holds the fields of a record that may be secret. It is stored encrypted.
type sealedPart struct {
	Env     map[string]string `json:"env,omitempty"`
	Notes   map[string]string `json:"notes,omitempty"`
	Network json.RawMessage   `json:"network,omitempty"`

	Services json.RawMessage `json:"services,omitempty"` // only for workspaces
}

// sealPurpose returns a purpose that binds sealed data to its row and its owner.
func sealPurpose(table, id string, owner engi.Owner) string {
	return fmt.Sprintf("%s %s of %s", table, id, owner)
}

func (db *DB) seal(table, id string, owner engi.Owner, p sealedPart) ([]byte, error) {
	text, err := encode(table, p)
	if err != nil {
		return nil, err
	}
	return db.Sealer.Seal(sealPurpose(table, id, owner), text), nil
}

// unseal decrypts sealed data. ok is false if the data is lost, because its key was
// given up.
func (db *DB) unseal(table, id string, owner engi.Owner, sealed []byte) (p sealedPart, ok bool, err error) {
	if db.Sealer == nil {
		return p, false, engi.Errorf(engi.Internal, "decode %s %s: there is no key", table, id)
	}
	text, err := db.Sealer.Unseal(sealPurpose(table, id, owner), sealed)
	if err != nil {
		return p, false, nil
	}
	return p, true, decode(table+" "+id, text, &p)
}

// lostNetwork is the policy of a record whose own policy is lost.
var lostNetwork = engi.NetworkPolicy{Mode: engi.NetworkNone}

// hasSecrets reports whether a policy has fields that may be secret.
func hasSecrets(p engi.NetworkPolicy) bool {
	return len(p.Headers) > 0 || p.Proxy != nil || len(p.Detail) > 0
}

// A detail is the part of a record stored as JSON, some of whose fields may be secret.
type detail interface {
	secret() (p sealedPart, any bool, err error) // returns the fields that may be secret; any is false if there are none
	hide(sealed []byte)                          // replaces these fields with sealed data
	hidden() []byte                              // returns the data that hide stored; nil if there is none
	show(p sealedPart) error                     // sets the fields from p
}

// closeDetail returns the JSON of d, with the fields that may be secret sealed.
func (db *DB) closeDetail(table, id string, owner engi.Owner, d detail) (string, error) {
	p, any, err := d.secret()
	if err != nil {
		return "", err
	}
	if any && db.Sealer != nil {
		sealed, err := db.seal(table, id, owner, p)
		if err != nil {
			return "", err
		}
		d.hide(sealed)
	}
	return encode(table, d)
}

// openDetail decodes JSON of closeDetail or of an earlier version. lost says that the key
// of the sealed data was given up.
func (db *DB) openDetail(table, id string, owner engi.Owner, text string, d detail) (lost bool, err error) {
	if err := decode(id, text, d); err != nil || d.hidden() == nil {
		return false, err
	}
	p, ok, err := db.unseal(table, id, owner, d.hidden())
	if err != nil || !ok {
		return true, err
	}
	return false, d.show(p)
}

// networkPart returns the sealed part for an environment and a network policy.
func networkPart(env map[string]string, n engi.NetworkPolicy) (p sealedPart, any bool, err error) {
	if len(env) == 0 && !hasSecrets(n) {
		return p, false, nil
	}
	network, err := encode("network policy", n)
	return sealedPart{Env: env, Network: json.RawMessage(network)}, true, err
}

// A sealedColumn is a column of rows with sealed parts.
type sealedColumn struct {
	table, column string
	key           string // SQL expression for the start of the sealed data in base64, NULL if there is none
	again         func(db *DB, id string, owner engi.Owner, text string) (string, error)
}

// sealedDetail returns the detail column of a table.
func sealedDetail[D any, P interface {
	*D
	detail
}](table string) sealedColumn {
	return sealedColumn{table, "detail", `substr(json_extract(nullif(detail, ''), '$.sealed'), 1, 24)`, func(db *DB, id string, owner engi.Owner, text string) (string, error) {
		d := P(new(D))
		if text == "" {
			return text, nil
		}
		if lost, err := db.openDetail(table, id, owner, text, d); err != nil || lost {
			return text, err
		}
		return db.closeDetail(table, id, owner, d)
	}}
}

var sealedColumns = []sealedColumn{
	sealedDetail[lifeDetail]("sandboxes"),
	sealedDetail[sessionDetail]("sessions"),
	sealedDetail[appDetail]("apps"),
	sealedDetail[workspaceDetail]("workspaces"),
	{"snapshots", "env", `CASE WHEN env LIKE '` + sealedPrefix + `%' THEN substr(env, ` + fmt.Sprint(len(sealedPrefix)+1) + `, 24) END`, func(db *DB, id string, owner engi.Owner, text string) (string, error) {
		env, lost, err := db.decodeEnv(id, owner, text)
		if err != nil || lost {
			return text, err
		}
		return db.encodeEnv(id, owner, env)
	}},
}

// Reseal encrypts the fields of records that may be secret again, with the current key. This includes
// fields that an earlier version stored unencrypted. It returns the number of changed
// records. Data that cannot be decrypted stays unchanged.
func (db *DB) Reseal(ctx context.Context) (n int, err error) {
	return db.sealRows(ctx, func(c sealedColumn) string { return `1` })
}

// SealStored encrypts fields that an earlier version stored unencrypted, and removes every
// trace of the plain text from the database's files.
func (db *DB) SealStored(ctx context.Context) error {
	n, err := db.sealRows(ctx, func(c sealedColumn) string { return `(` + c.key + `) IS NULL` })
	if err != nil || n == 0 {
		return err
	}
	if _, err := db.exec(ctx, `VACUUM`); err != nil {
		return err
	}
	_, err = db.exec(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`)
	return err
}

// sealRows encrypts the rows that a condition selects.
func (db *DB) sealRows(ctx context.Context, condition func(sealedColumn) string) (n int, err error) {
	defer engi.Annotate(&err, "seal records")
	type row struct {
		id    string
		owner engi.Owner
		text  string
	}
	for _, c := range sealedColumns {
		rows, err := list(ctx, db.read, func(s scanner) (r row, err error) { return r, s.Scan(&r.id, &r.owner, &r.text) },
			`SELECT id, owner, `+c.column+` FROM `+c.table+` WHERE `+c.column+` <> '' AND `+condition(c))
		if err != nil {
			return n, err
		}
		for _, r := range rows {
			text, err := c.again(db, r.id, r.owner, r.text)
			if err != nil {
				return n, err
			}
			if text == r.text {
				continue
			}
			if _, err := db.exec(ctx, `UPDATE `+c.table+` SET `+c.column+` = ? WHERE id = ? AND `+c.column+` = ?`, text, r.id, r.text); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, nil
}

// sealKeys returns the fingerprints of the keys of sealed parts.
func (db *DB) sealKeys(ctx context.Context) (keys []string, err error) {
	for _, c := range sealedColumns {
		starts, err := list(ctx, db.read, value[string], `SELECT DISTINCT `+c.key+` FROM `+c.table+` WHERE (`+c.key+`) IS NOT NULL`)
		if err != nil {
			return nil, err
		}
		for _, s := range starts {
			b, err := base64.StdEncoding.DecodeString(s)
			if err != nil || len(b) < fingerprintSize {
				return nil, engi.Errorf(engi.Internal, "a record in %s is damaged", c.table)
			}
			keys = append(keys, string(b[:fingerprintSize]))
		}
	}
	return keys, nil
}

// sealedPrefix is the prefix of sealed text.
const sealedPrefix = "sealed:"

// encodeEnv returns an environment sealed; "" for an empty one.
func (db *DB) encodeEnv(id string, owner engi.Owner, env map[string]string) (string, error) {
	if len(env) == 0 {
		return "", nil
	}
	if db.Sealer == nil {
		return encode("environment", env)
	}
	sealed, err := db.seal("snapshots", id, owner, sealedPart{Env: env})
	return sealedPrefix + base64.StdEncoding.EncodeToString(sealed), err
}

func (db *DB) decodeEnv(id string, owner engi.Owner, text string) (env map[string]string, lost bool, err error) {
	if text == "" {
		return nil, false, nil
	}
	coded, ok := strings.CutPrefix(text, sealedPrefix)
	if !ok {
		return env, false, decode("environment", text, &env)
	}
	sealed, err := base64.StdEncoding.DecodeString(coded)
	if err != nil {
		return nil, false, engi.Errorf(engi.Internal, "decode snapshot %s: the record is damaged", id)
	}
	p, ok, err := db.unseal("snapshots", id, owner, sealed)
	return p.Env, !ok, err
}
