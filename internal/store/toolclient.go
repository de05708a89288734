package store

import (
	"bytes"
	"context"
	"encoding/base64"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// toolClientStore implements [engi.ToolClients].
type toolClientStore struct{ db *DB }

var _ engi.ToolClients = toolClientStore{}

// ToolClients returns the store of sessions of MCP clients.
func ToolClients(db *DB) engi.ToolClients { return toolClientStore{db} }

var (
	errNoToolClient  = engi.Errorf(engi.NotFound, "there is no such session")
	errNoToolRequest = engi.Errorf(engi.NotFound, "there is no such request")
)

func (s toolClientStore) Put(ctx context.Context, c engi.ToolClient, limit int, since time.Time) (err error) {
	defer engi.Annotate(&err, "open a session")
	return s.db.tx(ctx, func(t *tx) error {
		if _, err := t.exec(ctx, `DELETE FROM tool_clients WHERE used <= ?`, nanos(since)); err != nil {
			return err
		}
		n, err := t.exec(ctx, `INSERT INTO tool_clients (id, key, about, used) SELECT ?, ?, ?, ?
			WHERE (SELECT count(*) FROM tool_clients WHERE key = ?) < ?`, c.ID, c.Key, c.About, nanos(c.Used), c.Key, limit)
		if err == nil && n == 0 {
			return engi.Errorf(engi.Exhausted, "clients of this key have %d sessions already", limit).
				WithRemedy("end sessions that are no longer used with DELETE, or give each client a key").WithRetry(engi.Retry{AfterMillis: 60_000})
		}
		return err
	})
}

func (s toolClientStore) Get(ctx context.Context, key, id string, since time.Time) (engi.ToolClient, error) {
	return first(ctx, s.db.read, errNoToolClient, func(row scanner) (c engi.ToolClient, err error) {
		c.ID, c.Key = id, key
		err = row.Scan(&c.About, (*stamp)(&c.Used))
		return c, err
	}, `SELECT about, used FROM tool_clients WHERE id = ? AND key = ? AND used > ?`, id, key, nanos(since))
}

func (s toolClientStore) Touch(ctx context.Context, id string, at time.Time) error {
	_, err := s.db.exec(ctx, `UPDATE tool_clients SET used = ? WHERE id = ?`, nanos(at), id)
	return err
}

func (s toolClientStore) Delete(ctx context.Context, key, id string) error {
	_, err := s.db.exec(ctx, `DELETE FROM tool_clients WHERE id = ? AND key = ?`, id, key)
	return err
}

// Arguments and results may be secret, so they are sealed like environments.
func (s toolClientStore) seal(client, stream string, data []byte) []byte {
	if s.db.Sealer == nil {
		return data
	}
	return s.db.Sealer.Seal(sealPurpose("tool_requests", client+" "+stream, ""), string(data))
}

func (s toolClientStore) unseal(client, stream string, data []byte) ([]byte, error) {
	if s.db.Sealer == nil {
		return data, nil
	}
	text, err := s.db.Sealer.Unseal(sealPurpose("tool_requests", client+" "+stream, ""), data)
	if err != nil {
		return nil, errNoToolRequest // the key that sealed it was given up
	}
	return []byte(text), nil
}

func (s toolClientStore) PutRequest(ctx context.Context, r engi.ToolRequest, limit int) (err error) {
	defer engi.Annotate(&err, "record a request")
	return s.db.tx(ctx, func(t *tx) error {
		_, err := t.exec(ctx, `INSERT INTO tool_requests (client, stream, run, body, answers) VALUES (?, ?, ?, ?, '')`, r.Client, r.Stream, r.Run, s.seal(r.Client, r.Stream, r.Body))
		if err == nil {
			const ofKey = `(SELECT o.id FROM tool_clients c JOIN tool_clients o ON o.key = c.key WHERE c.id = ?1)`
			_, err = t.exec(ctx, `DELETE FROM tool_requests WHERE client IN `+ofKey+` AND seq <= (SELECT seq FROM tool_requests WHERE client IN `+ofKey+` ORDER BY seq DESC LIMIT 1 OFFSET ?2)`, r.Client, limit)
		}
		return err
	})
}

func (s toolClientStore) AddAnswer(ctx context.Context, client, stream string, answer []byte, limit int) error {
	line := base64.StdEncoding.AppendEncode(nil, s.seal(client, stream, answer))
	_, err := s.db.exec(ctx, `UPDATE tool_requests SET answers = answers || ? WHERE client = ? AND stream = ? AND length(answers) <= ?`, string(line)+"\n", client, stream, base64.StdEncoding.EncodedLen(limit)-len(line))
	return err
}

func (s toolClientStore) Request(ctx context.Context, client, stream string) (engi.ToolRequest, error) {
	var answers string
	r, err := first(ctx, s.db.read, errNoToolRequest, func(row scanner) (r engi.ToolRequest, err error) {
		r.Client, r.Stream = client, stream
		err = row.Scan(&r.Run, &r.Body, &answers)
		return r, err
	}, `SELECT run, body, answers FROM tool_requests WHERE client = ? AND stream = ?`, client, stream)
	if err != nil {
		return r, err
	}
	if r.Body, err = s.unseal(client, stream, r.Body); err != nil {
		return r, err
	}
	for line := range bytes.Lines([]byte(answers)) {
		sealed, err := base64.StdEncoding.AppendDecode(nil, bytes.TrimSuffix(line, []byte("\n")))
		if err != nil {
			return r, engi.Errorf(engi.Internal, "the record of a request is damaged")
		}
		answer, err := s.unseal(client, stream, sealed)
		if err != nil {
			return r, err
		}
		r.Answers = append(r.Answers, answer)
	}
	return r, nil
}
