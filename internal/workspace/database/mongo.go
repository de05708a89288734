package database

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/md5"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/engi-dev/engi/internal/engi"
)

const (
	opMessage   = 2013               // kind of all messages, OP_MSG
	maxDocument = 16<<20 + 64<<10    // maximum bytes of a message; MongoDB sends no more
	maxBatch    = 1000               // documents that are requested at once
	minSCRAM    = 4096               // minimum number of rounds of a password's hash, RFC 5802; with fewer, a server could guess the password
	maxSCRAM    = 100_000            // maximum number of rounds
	maxStages   = 1000               // maximum number of stages of a pipeline
	mongoError  = "MaxTimeMSExpired" // name of the error when a query takes too long
)

// writing lists the stages of a pipeline that write. They can only be its last one.
var writing = []string{"$out", "$merge"}

// Writes reports whether a query of documents writes some. It reports false for invalid queries, which
// are refused later.
func Writes(q engi.DocumentQuery) bool {
	if len(q.Pipeline) == 0 {
		return false
	}
	stages, err := stagesOf(q.Pipeline)
	return err == nil && slices.ContainsFunc(stages, func(d bson.D) bool { return slices.Contains(writing, d[0].Key) })
}

// Documents finds or aggregates documents, see [engi.WorkspaceDatabases]. It ignores Owner, Workspace and
// Service of q.
func (s Server) Documents(ctx context.Context, q engi.DocumentQuery) (r engi.DocumentResult, err error) {
	if s.Type != engi.ServiceMongoDB {
		return r, engi.Errorf(engi.Unsupported, "a service of type %s has no documents", s.Type).WithRemedy("name a service of type mongodb")
	}
	limits, err := s.prepare(engi.Query{Text: "documents", Database: q.Database, MaxRows: q.MaxRows, MaxBytes: q.MaxBytes, Timeout: q.Timeout})
	if err != nil {
		return r, err
	}
	command, err := documentCommand(q, limits)
	if err != nil {
		return r, err
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, limits.Timeout)
	defer cancel()
	all := newRows(limits)
	refused, err := s.cursor(ctx, command, limits, func(doc []byte) (bool, error) {
		text, err := extended(doc, all.left)
		if all.full = errors.Is(err, errFull); all.full {
			return false, nil
		}
		if err != nil || !all.take(1, int64(len(text))) {
			return false, err
		}
		r.Documents, all.values = append(r.Documents, text), append(all.values, nil)
		return true, nil
	})
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return engi.DocumentResult{}, s.classify(ctx, "query the database", err)
	}
	s.scrub(refused)
	r.Truncated, r.Took, r.Error = all.full, time.Since(began), refused
	return r, nil
}

// documentCommand returns the command for a query, or Invalid.
func documentCommand(q engi.DocumentQuery, limits engi.Query) (bson.D, error) {
	if err := q.Faults().Err(); err != nil {
		return nil, err
	}
	if strings.ContainsRune(q.Collection, 0) || !utf8.ValidString(q.Collection) || len(q.Collection) > 255 {
		return nil, engi.Errorf(engi.Invalid, "%.70q is not the name of a collection", q.Collection)
	}
	if strings.EqualFold(limits.Database, "admin") || strings.HasPrefix(q.Collection, "system.") {
		return nil, engi.Errorf(engi.Invalid, "the database admin and the collections system.* belong to the server, which keeps its users there").
			WithRemedy("query another database")
	}
	batch := min(limits.MaxRows, maxBatch) + 1 // one more tells whether there are more
	last := bson.D{{Key: "maxTimeMS", Value: (limits.Timeout + patience).Milliseconds()}, {Key: "$db", Value: limits.Database}}
	if len(q.Pipeline) > 0 {
		if len(q.Filter)+len(q.Projection)+len(q.Sort) > 0 || q.Skip > 0 {
			return nil, engi.Errorf(engi.Invalid, "a query has a pipeline and a filter").WithRemedy("write the filter as a stage, like {\"$match\": …}")
		}
		stages, err := stagesOf(q.Pipeline)
		if err != nil {
			return nil, err
		}
		if len(stages) > maxStages {
			return nil, engi.Errorf(engi.Invalid, "the pipeline has %d stages, %d at most", len(stages), maxStages)
		}
		var from any = q.Collection
		if q.Collection == "" {
			from = 1 // stages that make documents themselves
		}
		return append(bson.D{{Key: "aggregate", Value: from}, {Key: "pipeline", Value: stages}, {Key: "cursor", Value: bson.D{{Key: "batchSize", Value: batch}}}}, last...), nil
	}
	if q.Collection == "" {
		return nil, engi.Errorf(engi.Invalid, "the query has no collection").WithRemedy("name one")
	}
	command := bson.D{{Key: "find", Value: q.Collection}}
	for _, part := range []struct {
		name, field string
		raw         json.RawMessage
	}{{"filter", "filter", q.Filter}, {"projection", "projection", q.Projection}, {"order", "sort", q.Sort}} {
		d, err := documentOf(part.name, part.raw)
		if err != nil {
			return nil, err
		}
		if len(d) > 0 || part.field == "filter" {
			command = append(command, bson.E{Key: part.field, Value: d})
		}
	}
	if q.Skip > 0 {
		command = append(command, bson.E{Key: "skip", Value: q.Skip})
	}
	return append(append(command, bson.E{Key: "limit", Value: int64(limits.MaxRows) + 1}, bson.E{Key: "batchSize", Value: batch}), last...), nil
}

// collections lists the collections of a database.
func (s Server) collections(ctx context.Context, q engi.Query) (all []engi.Table, err error) {
	q.Text = "collections"
	if q, err = s.prepare(q); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, q.Timeout)
	defer cancel()
	refused, err := s.cursor(ctx, bson.D{{Key: "listCollections", Value: 1}, {Key: "nameOnly", Value: true}, {Key: "$db", Value: q.Database}}, q, func(doc []byte) (bool, error) {
		t := engi.Table{Kind: "collection", Rows: -1, Bytes: -1}
		for e, err := range elements(doc) {
			if err != nil {
				return false, err
			}
			switch value, _ := stringOf(e.value); {
			case e.kind != bsonString:
			case e.name == "name":
				t.Name = s.hide(value)
			case e.name == "type":
				t.Kind = s.hide(value)
			}
		}
		if !strings.HasPrefix(t.Name, "system.") {
			all = append(all, t)
		}
		return len(all) < maxObjects, nil
	})
	switch {
	case err != nil:
		return nil, s.classify(ctx, "list the collections", err)
	case refused != nil:
		s.scrub(refused)
		return nil, engi.Errorf(engi.Invalid, "list the collections: %s (%s)", refused.Text, refused.Code)
	}
	slices.SortFunc(all, func(a, b engi.Table) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// cursor runs a command and calls take with each document of its result, until take returns false. It returns the
// error with which the server refuses the command.
func (s Server) cursor(ctx context.Context, command bson.D, q engi.Query, take func(doc []byte) (bool, error)) (refused *engi.QueryError, err error) {
	m, err := s.openMongo(ctx)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	defer guard(ctx, m, nil)()
	for {
		reply, refused, err := m.do(command)
		switch {
		case err != nil:
			return nil, err
		case refused != nil && refused.Code == mongoError:
			return nil, engi.Errorf(engi.Expired, "query the database: it took too long and was cancelled").WithRemedy("make it do less, or raise its timeout")
		case refused != nil:
			return refused, nil
		}
		id, namespace, batch, err := cursorOf(reply)
		if err != nil {
			return nil, err
		}
		_, collection, _ := strings.Cut(namespace, ".")
		for e, err := range elements(batch) {
			if err == nil && e.kind != bsonDocument {
				err = errBSON
			}
			more := false
			if err == nil {
				more, err = take(e.value)
			}
			if err != nil {
				return nil, err
			}
			if !more {
				if id != 0 { // the server would keep the cursor for minutes
					_, _, _ = m.do(bson.D{{Key: "killCursors", Value: collection}, {Key: "cursors", Value: []int64{id}}, {Key: "$db", Value: q.Database}})
				}
				return nil, nil
			}
		}
		if id == 0 {
			return nil, nil
		}
		command = bson.D{{Key: "getMore", Value: id}, {Key: "collection", Value: collection}, {Key: "batchSize", Value: maxBatch}, {Key: "$db", Value: q.Database}}
	}
}

// cursorOf returns the ID of the cursor in a reply, its namespace, and the array of documents.
func cursorOf(reply []byte) (id int64, namespace string, batch []byte, err error) {
	cursor, err := field(reply, "cursor", bsonDocument)
	if err != nil {
		return 0, "", nil, err
	}
	for e, err := range elements(cursor) {
		switch {
		case err != nil:
			return 0, "", nil, err
		case e.name == "id":
			id = numberOf(e)
		case e.name == "ns" && e.kind == bsonString:
			namespace, _ = stringOf(e.value)
		case (e.name == "firstBatch" || e.name == "nextBatch") && e.kind == bsonArray:
			batch = e.value
		}
	}
	if batch == nil {
		err = nonsense("a result has no documents")
	}
	return id, namespace, batch, err
}

// field returns the value of a field, which must have a type.
func field(doc []byte, name string, kind byte) ([]byte, error) {
	for e, err := range elements(doc) {
		if err != nil {
			return nil, err
		}
		if e.name == name && e.kind == kind {
			return e.value, nil
		}
	}
	return nil, nonsense("an answer has no " + name)
}

// A mongo is a connection to a server that speaks MongoDB's protocol.
type mongo struct {
	*link
	r    *bufio.Reader
	last int32 // ID of the last request
}

// openMongo connects and logs in.
func (s Server) openMongo(ctx context.Context) (*mongo, error) {
	m, err := s.connectMongo(ctx)
	if err != nil {
		return nil, err
	}
	defer guard(ctx, m, nil)()
	if s.Password != "" {
		if err := m.login(s); err != nil {
			m.Close()
			return nil, err
		}
	}
	m.left.Store(maxTraffic)
	return m, nil
}

func (s Server) connectMongo(ctx context.Context) (*mongo, error) {
	c, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	return &mongo{link: c, r: bufio.NewReader(c)}, nil
}

// SetUp gives a new mongod its user, who may do everything. The server's database of users must be s.Users. It
// does nothing if the user exists already. A mongod without users lets clients on its own machine create one,
// so Dial must connect from there.
func (s Server) SetUp(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	for _, create := range []bool{true, false} {
		var m *mongo
		if m, err = s.openMongo(ctx); err == nil {
			m.Close()
			return nil
		}
		var r *refusal
		if !create || !errors.As(err, &r) || r.Code != "AuthenticationFailed" {
			break
		}
		if err = s.createUser(ctx); err != nil {
			break
		}
	}
	return s.classify(ctx, "create the user", err)
}

func (s Server) createUser(ctx context.Context) error {
	m, err := s.connectMongo(ctx)
	if err != nil {
		return err
	}
	defer m.Close()
	defer guard(ctx, m, nil)()
	_, refused, err := m.do(bson.D{
		{Key: "createUser", Value: s.User}, {Key: "pwd", Value: s.Password},
		{Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: "root"}, {Key: "db", Value: "admin"}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}, {Key: "j", Value: true}}}, {Key: "$db", Value: s.Users},
	})
	if err == nil && refused != nil {
		err = &refusal{*refused}
	}
	return err
}

// fullRole is the role of the user of a mongod while its volume is full.
const fullRole = "engi_full"

// Limit has the user of a mongod only read and remove documents while the volume is full, and do everything
// otherwise. It does nothing if the user has another password by now.
func (s Server) Limit(ctx context.Context, full bool) error {
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	m, err := s.openMongo(ctx)
	var r *refusal
	if errors.As(err, &r) && r.Code == "AuthenticationFailed" {
		return nil
	}
	if err == nil {
		defer m.Close()
		defer guard(ctx, m, nil)()
		err = m.limit(s, full)
	}
	if err != nil {
		return s.classify(ctx, "set the roles of the user", err)
	}
	return nil
}

func (m *mongo) limit(s Server, full bool) error {
	run := func(command ...bson.E) ([]byte, error) {
		reply, refused, err := m.do(append(bson.D(command), bson.E{Key: "$db", Value: s.Users}))
		if err == nil && refused != nil {
			err = &refusal{*refused}
		}
		return reply, err
	}
	reply, err := run(bson.E{Key: "usersInfo", Value: s.User})
	if err != nil {
		return err
	}
	roles, err := rolesOf(reply)
	if err != nil {
		return err
	}
	add, remove := "root", fullRole
	if full {
		add, remove = fullRole, "root"
	}
	if !slices.Contains(roles, remove) {
		return nil
	}
	if full {
		_, err = run(bson.E{Key: "createRole", Value: fullRole}, bson.E{Key: "roles", Value: bson.A{}}, bson.E{Key: "privileges", Value: bson.A{
			bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: ""}, {Key: "collection", Value: ""}}}, {Key: "actions", Value: bson.A{"find", "remove", "dropCollection", "dropDatabase", "dropIndex", "compact", "listCollections", "listIndexes", "collStats", "dbStats"}}},
			bson.D{{Key: "resource", Value: bson.D{{Key: "cluster", Value: true}}}, {Key: "actions", Value: bson.A{"listDatabases", "serverStatus"}}},
			bson.D{{Key: "resource", Value: bson.D{{Key: "db", Value: s.Users}, {Key: "collection", Value: ""}}}, {Key: "actions", Value: bson.A{"grantRole", "revokeRole", "viewUser"}}},
		}})
		var r *refusal
		if err != nil && !errors.As(err, &r) { // a refusal says that the role exists; if not, it cannot be granted
			return err
		}
	}
	// Each step leaves the user with one of the roles, and the next call with the steps that are missing.
	if _, err = run(bson.E{Key: "grantRolesToUser", Value: s.User}, bson.E{Key: "roles", Value: bson.A{add}}); err != nil {
		return err
	}
	_, err = run(bson.E{Key: "revokeRolesFromUser", Value: s.User}, bson.E{Key: "roles", Value: bson.A{remove}})
	return err
}

// rolesOf returns the roles of the first user in an answer of a server.
func rolesOf(reply []byte) (roles []string, err error) {
	users, err := field(reply, "users", bsonArray)
	if err != nil {
		return nil, err
	}
	user, err := field(users, "0", bsonDocument)
	if err != nil {
		return nil, err
	}
	all, err := field(user, "roles", bsonArray)
	if err != nil {
		return nil, err
	}
	for role, err := range elements(all) {
		if err != nil {
			return nil, err
		}
		if role.kind != bsonDocument {
			continue
		}
		value, err := field(role.value, "role", bsonString)
		if err != nil {
			return nil, err
		}
		name, err := stringOf(value)
		if err != nil {
			return nil, err
		}
		roles = append(roles, name)
	}
	return roles, nil
}

// A mechanism is a way to log in, RFC 5802 and RFC 7677.
type mechanism struct {
	name string
	hash func() hash.Hash
	// secret returns the text that is hashed as the password.
	secret func(s Server) string
}

var (
	scramSHA256 = mechanism{"SCRAM-SHA-256", sha256.New, func(s Server) string { return s.Password }}
	// scramSHA1 is the only mechanism of mongod before version 4.
	scramSHA1 = mechanism{"SCRAM-SHA-1", sha1.New, func(s Server) string {
		sum := md5.Sum([]byte(s.User + ":mongo:" + s.Password))
		return hex.EncodeToString(sum[:])
	}}
)

// mechanism returns the best mechanism that a server offers to its user.
func (m *mongo) mechanism(s Server) (mechanism, error) {
	if s.Users == "" {
		return scramSHA256, nil // of FerretDB
	}
	reply, refused, err := m.do(bson.D{{Key: "isMaster", Value: 1}, {Key: "saslSupportedMechs", Value: s.Users + "." + s.User}, {Key: "$db", Value: s.Users}})
	if err == nil && refused != nil {
		err = &refusal{*refused}
	}
	if err != nil {
		return mechanism{}, err
	}
	return mechanismOf(reply)
}

// mechanismOf returns the best mechanism in an answer of a server.
func mechanismOf(reply []byte) (mechanism, error) {
	for e, err := range elements(reply) {
		if err != nil {
			return mechanism{}, err
		}
		if e.name != "saslSupportedMechs" || e.kind != bsonArray {
			continue
		}
		for name, err := range elements(e.value) {
			if err != nil {
				return mechanism{}, err
			}
			if name.kind != bsonString {
				continue
			}
			text, err := stringOf(name.value)
			if err != nil {
				return mechanism{}, err
			}
			if text == scramSHA256.name {
				return scramSHA256, nil
			}
		}
	}
	return scramSHA1, nil
}

// login logs in with SCRAM. The server must show that it knows the password, too.
func (m *mongo) login(s Server) error {
	how, err := m.mechanism(s)
	if err != nil {
		return err
	}
	nonce := rand.Text()
	name := strings.NewReplacer("=", "=3D", ",", "=2C").Replace(s.User)
	first := "n=" + name + ",r=" + nonce
	say := func(command ...bson.E) (payload string, id int64, done bool, err error) {
		reply, refused, err := m.do(append(bson.D(command), bson.E{Key: "$db", Value: cmp.Or(s.Users, s.Database)}))
		if err == nil && refused != nil {
			err = &refusal{*refused}
		}
		if err != nil {
			return "", 0, false, err
		}
		for e, err := range elements(reply) {
			switch {
			case err != nil:
				return "", 0, false, err
			case e.name == "payload":
				payload = string(binaryOf(e))
			case e.name == "conversationId":
				id = numberOf(e)
			case e.name == "done":
				done = numberOf(e) != 0
			}
		}
		return payload, id, done, nil
	}
	challenge, id, _, err := say(bson.E{Key: "saslStart", Value: 1}, bson.E{Key: "mechanism", Value: how.name}, bson.E{Key: "payload", Value: []byte("n,," + first)})
	if err != nil {
		return err
	}
	final, signature, err := how.answer(how.secret(s), nonce, first, challenge)
	if err != nil {
		return err
	}
	next := func(payload string) (string, bool, error) {
		answer, _, done, err := say(bson.E{Key: "saslContinue", Value: 1}, bson.E{Key: "conversationId", Value: id}, bson.E{Key: "payload", Value: []byte(payload)})
		return answer, done, err
	}
	answer, done, err := next(final)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare([]byte(answer), []byte("v="+signature)) != 1 {
		return nonsense("it does not know the password")
	}
	if !done {
		_, done, err = next("")
		if err == nil && !done {
			err = nonsense("the login does not end")
		}
	}
	return err
}

// answer answers the server's first message, and returns the signature by which the server must show
// that it knows the password.
func (h mechanism) answer(secret, nonce, first, challenge string) (final, signature string, err error) {
	var both string
	var salt []byte
	rounds := 0
	for part := range strings.SplitSeq(challenge, ",") {
		switch name, value, _ := strings.Cut(part, "="); name {
		case "r":
			both = value
		case "s":
			if salt, err = base64.StdEncoding.DecodeString(value); err != nil {
				return "", "", nonsense("its challenge cannot be answered")
			}
		case "i":
			rounds, _ = strconv.Atoi(value)
		case "m": // an extension that the client must understand
			return "", "", nonsense("its challenge cannot be answered")
		}
	}
	if !strings.HasPrefix(both, nonce) || both == nonce || len(salt) == 0 {
		return "", "", nonsense("its challenge cannot be answered")
	}
	if rounds < minSCRAM || rounds > maxSCRAM {
		return "", "", nonsense("its challenge has a number of rounds that is not accepted")
	}
	size := h.hash().Size()
	salted, err := pbkdf2.Key(h.hash, secret, salt, rounds, size)
	if err != nil {
		return "", "", nonsense("its challenge cannot be answered")
	}
	mac := func(key []byte, text string) []byte {
		m := hmac.New(h.hash, key)
		m.Write([]byte(text))
		return m.Sum(nil)
	}
	final = "c=biws,r=" + both
	all := first + "," + challenge + "," + final
	key := mac(salted, "Client Key")
	stored := h.hash()
	stored.Write(key)
	proof := mac(stored.Sum(nil), all)
	subtle.XORBytes(proof, proof, key)
	return final + ",p=" + base64.StdEncoding.EncodeToString(proof), base64.StdEncoding.EncodeToString(mac(mac(salted, "Server Key"), all)), nil
}

// do runs a command. It returns the reply, or the error with which the server refuses the command.
func (m *mongo) do(command bson.D) ([]byte, *engi.QueryError, error) {
	body, err := bson.Marshal(command)
	if err != nil {
		return nil, nil, engi.Errorf(engi.Invalid, "the query cannot be encoded: %v", err)
	}
	m.last++
	out := make([]byte, 21, 21+len(body)) // header, no flags, and one section with the document
	binary.LittleEndian.PutUint32(out, uint32(21+len(body)))
	binary.LittleEndian.PutUint32(out[4:], uint32(m.last))
	binary.LittleEndian.PutUint32(out[12:], opMessage)
	if _, err := m.Write(append(out, body...)); err != nil {
		return nil, nil, err
	}
	doc, err := m.receive()
	if err != nil {
		return nil, nil, err
	}
	var ok bool
	var number int64
	var refused engi.QueryError
	for e, err := range elements(doc) {
		if err != nil {
			return nil, nil, err
		}
		switch {
		case e.name == "ok":
			ok = numberOf(e) == 1
		case e.name == "errmsg" && e.kind == bsonString:
			refused.Text, err = stringOf(e.value)
		case e.name == "codeName" && e.kind == bsonString:
			refused.Code, err = stringOf(e.value)
		case e.name == "code":
			number = numberOf(e)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if ok {
		return doc, nil, nil
	}
	if refused.Code == "" {
		refused.Code = strconv.FormatInt(number, 10)
	}
	return nil, &refused, nil
}

// receive reads the document of the next message.
func (m *mongo) receive() ([]byte, error) {
	var head [16 + 4]byte
	if _, err := io.ReadFull(m.r, head[:]); err != nil {
		return nil, err
	}
	size, flags := int64(int32(binary.LittleEndian.Uint32(head[:]))), binary.LittleEndian.Uint32(head[16:])
	switch {
	case size < int64(len(head))+1+5 || size > maxDocument:
		return nil, nonsense("a message has no length that there could be")
	case binary.LittleEndian.Uint32(head[12:]) != opMessage || int32(binary.LittleEndian.Uint32(head[8:])) != m.last:
		return nil, nonsense("a message is no answer")
	case flags&^1 != 0:
		return nil, nonsense("a message has unknown flags")
	}
	var b bytes.Buffer // grows with the bytes that arrive, not with those that are announced
	if n, err := io.CopyN(&b, m.r, size-int64(len(head))); err != nil {
		if n > 0 && err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	body := b.Bytes()
	if flags&1 != 0 { // a checksum follows
		if len(body) < 4 {
			return nil, nonsense("a message has no checksum")
		}
		body = body[:len(body)-4]
	}
	if body[0] != 0 {
		return nil, nonsense("a message has no document")
	}
	return body[1:], nil
}
