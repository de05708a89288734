package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/docs"
	"github.com/engi-dev/engi/internal/engi"
)

// docStore implements [docs.Store].
type docStore struct {
	table[docs.Record, engi.DocumentID]
}

var _ docs.Store = docStore{}

// Docs returns the store of documents and modules.
func Docs(db *DB) docs.Store {
	return docStore{table[docs.Record, engi.DocumentID]{
		db: db, name: "docs", noun: "document", columns: `id, shelf, package, place, title, bytes, module, detail`,
		fields: func(r *docs.Record) []any {
			module := r.Module != nil
			return []any{&r.ID, &r.Collection, &r.Package, &r.Key, &r.Title, &r.Bytes, &module, derived{func() (string, error) { return encodeDoc(r) }, func(text string) error { return decodeDoc(text, r) }}}
		},
	}}
}

// docDetail holds the fields of a record that no query selects by.
type docDetail struct {
	Owner      engi.Owner         `json:"owner,omitempty"`
	URL        string             `json:"url,omitempty"`
	Fetched    bool               `json:"fetched,omitempty"`
	Chunks     int                `json:"chunks"`
	Digest     string             `json:"digest,omitempty"`
	State      engi.DocumentState `json:"state"`
	Error      *keptError         `json:"error,omitempty"`
	Checked    int64              `json:"checked,omitempty"`
	Changed    int64              `json:"changed,omitempty"`
	Configured bool               `json:"configured,omitempty"`
	ETag       string             `json:"etag,omitempty"`
	Modified   string             `json:"modified,omitempty"`
	Uses       []string           `json:"uses,omitempty"`
	Module     *docModule         `json:"module,omitempty"`
}

type docModule struct {
	Path        string           `json:"path"`
	Description string           `json:"description,omitempty"`
	Exports     []string         `json:"exports,omitempty"`
	Usage       string           `json:"usage,omitempty"`
	Scope       engi.ModuleScope `json:"scope"`
	Source      string           `json:"source,omitempty"`
	Session     engi.SessionID   `json:"session"`
	Saved       int64            `json:"saved"`
}

func (f docStore) Put(ctx context.Context, r docs.Record, pieces []docs.Chunk, quota docs.Quota) (_ docs.Record, err error) {
	defer engi.Annotate(&err, "record document %s", r.ID)
	err = f.db.tx(ctx, func(t *tx) error {
		var seq int64
		err := t.row(ctx, `SELECT seq, id FROM docs WHERE shelf = ? AND package = ? AND place = ?`, r.Collection, r.Package, r.Key).Scan(&seq, &r.ID)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fault(ctx, err)
		}
		if err := withinQuota(ctx, t, r, quota); err != nil {
			return err
		}
		values := f.fields(&r)
		if seq == 0 {
			res, err := t.run(ctx, `INSERT INTO docs (`+f.columns+`) VALUES (`+marks(len(values))+`)`, values...)
			if err != nil {
				return fault(ctx, err)
			}
			if seq, err = res.LastInsertId(); err != nil {
				return fault(ctx, err)
			}
		} else if _, err := t.exec(ctx, `UPDATE docs SET (`+f.columns+`) = (`+marks(len(values))+`) WHERE seq = ?`, append(values, seq)...); err != nil {
			return err
		}
		if pieces == nil {
			return nil
		}
		if err := clearPieces(ctx, t, seq); err != nil {
			return err
		}
		return insertPieces(ctx, t, seq, r, pieces)
	})
	return r, err
}

// withinQuota reports Exhausted if the collection would exceed quota with
// r. Like Put, it replaces a record that has the same key.
func withinQuota(ctx context.Context, t *tx, r docs.Record, quota docs.Quota) error {
	if quota == (docs.Quota{}) {
		return nil
	}
	var n int
	var bytes int64
	err := t.row(ctx, `SELECT coalesce(sum(count), 0), coalesce(sum(bytes), 0) FROM
		(SELECT count, bytes FROM docs_totals WHERE shelf = ?1 UNION ALL SELECT -1, -bytes FROM docs WHERE shelf = ?1 AND package = ?2 AND place = ?3)`,
		r.Collection, r.Package, r.Key).Scan(&n, &bytes)
	if err != nil {
		return fault(ctx, err)
	}
	if quota.Documents > 0 && n >= quota.Documents {
		return engi.Errorf(engi.Exhausted, "there are already %d, which is the limit", n).WithRemedy("remove some, or ask the operator for a higher limit")
	}
	if quota.Bytes > 0 && bytes+r.Bytes > quota.Bytes {
		return engi.Errorf(engi.Exhausted, "the documents would have %d bytes in total; the limit is %d", bytes+r.Bytes, quota.Bytes).
			WithRemedy("remove some, or ask the operator for a higher limit")
	}
	return nil
}

func clearPieces(ctx context.Context, t *tx, record int64) error {
	for _, q := range []string{
		`DELETE FROM docs_words WHERE rowid IN (SELECT id FROM docs_pieces WHERE record = ?)`,
		`DELETE FROM docs_pieces WHERE record = ?`,
	} {
		if _, err := t.exec(ctx, q, record); err != nil {
			return err
		}
	}
	return nil
}

func insertPieces(ctx context.Context, t *tx, record int64, r docs.Record, pieces []docs.Chunk) error {
	put, err := t.prepare(ctx, `INSERT INTO docs_pieces (record, hash, headings, anchor, body, embedder, vector) VALUES (?, ?, ?, ?, ?, ?, ?)`)
	if err != nil {
		return fault(ctx, err)
	}
	defer put.Close()
	words, err := t.prepare(ctx, `INSERT INTO docs_words (rowid, headings, body, names, places) VALUES (?, ?, ?, ?, ?)`)
	if err != nil {
		return fault(ctx, err)
	}
	defer words.Close()
	places := []string{placeOfCollection(r.Collection)}
	if !docs.IsSessionCollection(r.Collection) {
		places = append(places, everywhere)
	}
	for _, p := range r.Packages() {
		places = append(places, placeOfPackage(p))
	}
	for i := range pieces {
		p := &pieces[i]
		headings, err := json.Marshal(p.Headings)
		if err != nil {
			return engi.Errorf(engi.Internal, "%v", err)
		}
		res, err := put.ExecContext(ctx, record, p.Hash, string(headings), p.Anchor, p.Text, p.Embedder, vectorBytes(p.Vector))
		if err != nil {
			return fault(ctx, err)
		}
		if p.ID, err = res.LastInsertId(); err != nil {
			return fault(ctx, err)
		}
		p.Document = r.ID
		if _, err := words.ExecContext(ctx, p.ID, r.Title+"\n"+strings.Join(p.Headings, "\n"), p.Text, p.Identifiers, strings.Join(places, " ")); err != nil {
			return fault(ctx, err)
		}
	}
	return nil
}

// The column places of the full-text index holds words for the places of a row:
// everywhere, and the words of the two functions. No tokenizer splits them and no
// stemmer changes them.
const everywhere = "xx0"

func placeOfCollection(s string) string { return place("s", s) }
func placeOfPackage(p string) string    { return place("p", p) }

func place(kind, name string) string {
	sum := sha256.Sum256([]byte(name))
	return "x" + kind + hex.EncodeToString(sum[:8]) + "0"
}

// enough is the number of rows that BM25 ranks. Ranking every row with a frequent word
// takes a hundred times as long as finding the rows.
const enough = 500

func (f docStore) Match(ctx context.Context, q docs.Query) ([]int64, error) {
	var places, words []string
	for _, s := range q.Collections {
		if s == docs.Everywhere {
			places = append(places, everywhere)
			continue
		}
		places = append(places, placeOfCollection(s))
	}
	for _, w := range q.Words {
		words = append(words, `"`+strings.ReplaceAll(strings.ReplaceAll(w, "\x00", ""), `"`, `""`)+`"`)
	}
	if len(places) == 0 || len(words) == 0 {
		return nil, nil
	}
	within := `places : (` + strings.Join(places, " OR ") + `)`
	if q.Package != "" {
		within = `(` + within + `) AND (places : ` + placeOfPackage(q.Package) + `)`
	}
	rare, err := f.rare(ctx, words)
	if err != nil || len(rare) == 0 {
		return nil, err
	}
	all := anyOf(words)
	if len(rare) < len(words) {
		// Frequent words only affect the ranking.
		ids, err := f.rank(ctx, `(`+within+`) AND (`+anyOf(rare)+`) AND (`+all+`)`, q.Limit)
		if err != nil || len(ids) == q.Limit {
			return ids, err
		}
		// Too few rows within the search have the rare words.
	}
	return f.rank(ctx, `(`+within+`) AND (`+all+`)`, q.Limit)
}

func anyOf(words []string) string {
	return `{headings body names} : (` + strings.Join(words, " OR ") + `)`
}

// rare returns the least frequent words, so many that they find enough rows.
// It is empty if no row has any of them.
func (f docStore) rare(ctx context.Context, words []string) ([]string, error) {
	const count = `(SELECT count(*) FROM (SELECT 1 FROM docs_words WHERE docs_words MATCH ? LIMIT ?))`
	args := make([]any, 0, 2*len(words))
	for _, w := range words {
		args = append(args, anyOf([]string{w}), 4*enough)
	}
	counts, into := make([]int, len(words)), make([]any, len(words))
	for i := range counts {
		into[i] = &counts[i]
	}
	if err := f.db.read.QueryRowContext(ctx, `SELECT `+strings.TrimSuffix(strings.Repeat(count+`, `, len(words)), `, `), args...).Scan(into...); err != nil {
		return nil, fault(ctx, err)
	}
	order := make([]int, len(words))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(counts[a], counts[b]) })
	var found []string
	sum := 0
	for _, i := range order {
		if sum >= enough {
			break
		}
		if counts[i] > 0 {
			found = append(found, words[i])
			sum += counts[i]
		}
	}
	return found, nil
}

// rank returns the rows that match, best first.
func (f docStore) rank(ctx context.Context, match string, limit int) ([]int64, error) {
	return list(ctx, f.db.read, value[int64], `SELECT rowid FROM docs_words WHERE docs_words MATCH ? AND rank MATCH 'bm25(2.0, 1.0, 0.5, 0.0)' ORDER BY rank LIMIT ?`, match, limit)
}

func (f docStore) Records(ctx context.Context, q docs.Filter) ([]docs.Record, error) {
	var w where
	w.and(q.IDs != nil, `id IN (`+marks(len(q.IDs))+`)`, values(q.IDs)...)
	w.and(q.Collections != nil, `shelf IN (`+marks(len(q.Collections))+`)`, values(q.Collections)...)
	w.and(q.Documents, `NOT module`)
	w.and(q.Key != "", `package = ? AND place = ?`, q.Package, q.Key)
	if p := q.Page; p.Limit > 0 && len(q.Collections) > 1 {
		// The index is ordered within a collection only, so query each collection and merge.
		if p.After != "" {
			if err := selected(ctx, f.db, p, `docs`, w); err != nil {
				return nil, err
			}
		}
		var some []string
		var args []any
		for _, shelf := range q.Collections {
			one := where{slices.Clone(w.text), slices.Clone(w.args)}
			one.and(true, `shelf = ?`, shelf)
			one.and(p.After != "", `(package, title, seq) > (SELECT package, title, seq FROM docs WHERE id = ?)`, p.After)
			some = append(some, `seq IN (SELECT seq FROM docs`+one.String()+` ORDER BY package, title, seq LIMIT ?)`)
			args = append(append(args, one.args...), p.Limit)
		}
		return f.all(ctx, when(strings.Join(some, ` OR `), args...), `package, title, seq`, p.Limit)
	}
	return f.page(ctx, q.Page, w, false, `package`, `title`, `seq`)
}

func (f docStore) Remove(ctx context.Context, collection string, ids []engi.DocumentID) error {
	one := func(t *tx, id engi.DocumentID) error {
		var w where
		w.and(true, `shelf = ?`, collection)
		w.and(id != "", `id = ?`, string(id))
		of := ` FROM docs` + w.String()
		for _, q := range []string{
			`DELETE FROM docs_words WHERE rowid IN (SELECT id FROM docs_pieces WHERE record IN (SELECT seq` + of + `))`,
			`DELETE` + of,
		} {
			if _, err := t.exec(ctx, q, w.args...); err != nil {
				return err
			}
		}
		return nil
	}
	return f.db.tx(ctx, func(t *tx) error {
		if ids == nil {
			return one(t, "")
		}
		for _, id := range ids {
			if id == "" {
				continue
			}
			if err := one(t, id); err != nil {
				return err
			}
		}
		return nil
	})
}

func (f docStore) Chunks(ctx context.Context, ids []int64) ([]docs.Chunk, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	return list(ctx, f.db.read, func(row scanner) (p docs.Chunk, err error) {
		var headings string
		if err := row.Scan(&p.ID, &p.Document, &p.Hash, &headings, &p.Anchor, &p.Text, &p.Embedder); err != nil {
			return p, err
		}
		if err := json.Unmarshal([]byte(headings), &p.Headings); err != nil {
			return p, engi.Errorf(engi.Internal, "decode piece %d: %v", p.ID, err)
		}
		return p, nil
	}, `SELECT p.id, r.id, p.hash, p.headings, p.anchor, p.body, p.embedder
		FROM docs_pieces p JOIN docs r ON r.seq = p.record WHERE p.id IN (`+marks(len(ids))+`)`, values(ids)...)
}

func (f docStore) Vectors(ctx context.Context, collection string, id engi.DocumentID) ([]docs.Chunk, error) {
	var raw sql.RawBytes
	return list(ctx, f.db.read, func(row scanner) (p docs.Chunk, err error) {
		err = row.Scan(&p.ID, &p.Document, &p.Hash, &p.Embedder, &raw)
		p.Vector = vectorOf(raw)
		return p, err
	}, `SELECT p.id, r.id, p.hash, p.embedder, p.vector
		FROM docs r JOIN docs_pieces p ON p.record = r.seq WHERE r.shelf = ? AND (? = '' OR r.id = ?) ORDER BY p.id`, collection, string(id), string(id))
}

func (f docStore) SetVectors(ctx context.Context, embedder string, vectors map[int64][]float32) error {
	return f.db.tx(ctx, func(t *tx) error {
		for id, v := range vectors {
			if _, err := t.exec(ctx, `UPDATE docs_pieces SET embedder = ?, vector = ? WHERE id = ?`, embedder, vectorBytes(v), id); err != nil {
				return err
			}
		}
		return nil
	})
}

// values returns the arguments for marks.
func values[T any](all []T) []any {
	args := make([]any, len(all))
	for i, v := range all {
		args[i] = v
	}
	return args
}

// marks returns n placeholders.
func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?, ", n), ", ") }

// vectorBytes returns nil, which is stored as NULL, for an empty vector.
func vectorBytes(v []float32) []byte {
	if v == nil {
		return nil
	}
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

func vectorOf(b []byte) []float32 {
	if b == nil {
		return nil
	}
	v := make([]float32, len(b)/4)
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}

// encodeDoc returns the detail of a document.
func encodeDoc(r *docs.Record) (string, error) {
	d := docDetail{
		Owner: r.Owner, URL: r.URL, Fetched: r.Fetched, Chunks: r.Chunks, Digest: r.Digest, State: r.State, Checked: nanos(r.Checked), Changed: nanos(r.Changed),
		Configured: r.Configured, ETag: r.ETag, Modified: r.Modified, Uses: r.Imports,
	}
	d.Error = keepError(r.Error)
	if m := r.Module; m != nil {
		d.Module = &docModule{Path: m.Path, Description: m.Description, Exports: m.Exports, Usage: m.Usage, Scope: m.Scope, Source: m.Source, Session: m.Session, Saved: nanos(m.Saved)}
	}
	return encode("document", d)
}

// decodeDoc sets the fields of r that are in its detail.
func decodeDoc(text string, r *docs.Record) error {
	var d docDetail
	if err := decode("detail", text, &d); err != nil {
		return err
	}
	r.Owner, r.URL, r.Fetched, r.Chunks, r.Digest, r.State = d.Owner, d.URL, d.Fetched, d.Chunks, d.Digest, d.State
	r.Checked, r.Changed = moment(d.Checked), moment(d.Changed)
	r.Configured, r.ETag, r.Modified, r.Imports = d.Configured, d.ETag, d.Modified, d.Uses
	r.Error = d.Error.decode()
	if m := d.Module; m != nil {
		r.Module = &engi.CodeModule{
			Path: m.Path, Description: m.Description, Exports: m.Exports, Usage: m.Usage, Scope: m.Scope, Source: m.Source, Session: m.Session, Saved: moment(m.Saved),
		}
	}
	return nil
}
