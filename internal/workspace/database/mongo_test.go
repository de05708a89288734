package database_test

import (
	"context"
	"crypto/hmac"
	"crypto/md5"
	"crypto/pbkdf2"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/workspace/database"
)

// A fakeMongo is a server of MongoDB's protocol that checks the password and answers each command
// with a function. Test/e2e/workspace has the real server.
type fakeMongo struct {
	mu       sync.Mutex
	commands []bson.M
	answer   func(command bson.M) any

	mechs    any  // mechanisms that a mongod says it has; nil means it has SCRAM-SHA-1 and says nothing
	mongod   bool // the users belong to the database admin
	userless bool // a user can be created, and none logs in before
}

func (f *fakeMongo) server() database.Server {
	users := ""
	if f.mongod {
		users = "admin"
	}
	return database.Server{Type: engi.ServiceMongoDB, User: "chief", Password: password, Database: "app", Users: users, Dial: func(context.Context) (net.Conn, error) {
		client, s := net.Pipe()
		go func() {
			defer s.Close()
			f.serve(s)
		}()
		return client, nil
	}}
}

// names returns the names of the commands after the login.
func (f *fakeMongo) names() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, c := range f.commands {
		for _, name := range []string{"find", "aggregate", "getMore", "killCursors", "listCollections"} {
			if _, ok := c[name]; ok {
				all = append(all, name)
			}
		}
	}
	return strings.Join(all, " ")
}

// readMessage returns the document of a message, and its ID.
func readMessage(r io.Reader) (doc []byte, id uint32, err error) {
	var head [21]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, 0, err
	}
	doc = make([]byte, binary.LittleEndian.Uint32(head[:])-21)
	_, err = io.ReadFull(r, doc)
	return doc, binary.LittleEndian.Uint32(head[4:]), err
}

// message returns a reply to the message with an ID.
func message(id uint32, doc []byte) []byte {
	m := make([]byte, 21, 21+len(doc))
	binary.LittleEndian.PutUint32(m, uint32(21+len(doc)))
	binary.LittleEndian.PutUint32(m[8:], id)
	binary.LittleEndian.PutUint32(m[12:], 2013)
	return append(m, doc...)
}

func (f *fakeMongo) serve(c net.Conn) {
	login := scramServer{hash: sha256.New, name: "SCRAM-SHA-256", secret: password, db: "app"}
	if f.mongod {
		login.db = "admin"
		if mechs, _ := f.mechs.(bson.A); !slices.Contains(mechs, any("SCRAM-SHA-256")) {
			sum := md5.Sum([]byte("chief:mongo:" + password))
			login.hash, login.name, login.secret = sha1.New, "SCRAM-SHA-1", hex.EncodeToString(sum[:])
		}
	}
	for {
		doc, id, err := readMessage(c)
		if err != nil {
			return
		}
		var command bson.M
		if err := bson.Unmarshal(doc, &command); err != nil {
			panic(err)
		}
		f.mu.Lock()
		userless := f.userless
		f.mu.Unlock()
		answer := login.answer(command, userless)
		switch {
		case answer != nil:
		case command["isMaster"] != nil:
			answer = bson.M{"ok": 1.0, "saslSupportedMechs": f.mechs}
			if f.mechs == nil || command["saslSupportedMechs"] != "admin.chief" {
				answer = bson.M{"ok": 1.0}
			}
		case command["createUser"] != nil && userless:
			f.mu.Lock()
			f.commands = append(f.commands, command)
			f.userless = false
			f.mu.Unlock()
			answer = bson.M{"ok": 1.0}
		default:
			f.mu.Lock()
			f.commands = append(f.commands, command)
			f.mu.Unlock()
			if answer = f.answer(command); !login.done {
				answer = bson.M{"ok": 0, "errmsg": "not logged in", "code": 13, "codeName": "Unauthorized"}
			}
		}
		raw, err := bson.Marshal(answer)
		if err != nil {
			panic(err)
		}
		if _, err := c.Write(message(id, raw)); err != nil {
			return
		}
	}
}

// A scramServer is the server's side of a login, RFC 5802.
type scramServer struct {
	hash             func() hash.Hash
	name, secret, db string
	first, challenge string
	done             bool
}

// answer answers a command of the login, and returns nil for others.
func (s *scramServer) answer(command bson.M, userless bool) any {
	payload, _ := command["payload"].(bson.Binary)
	const salt, rounds = "0123456789abcdef", 4096
	reply := func(text string, done bool) any {
		return bson.M{"conversationId": 1, "done": done, "payload": bson.Binary{Data: []byte(text)}, "ok": 1.0}
	}
	failed := bson.M{"ok": 0, "errmsg": "Authentication failed.", "code": 18, "codeName": "AuthenticationFailed"}
	switch {
	case command["saslStart"] != nil:
		if userless || command["mechanism"] != s.name || command["$db"] != s.db {
			return failed
		}
		s.first = strings.TrimPrefix(string(payload.Data), "n,,")
		_, nonce, _ := strings.Cut(s.first, ",r=")
		s.challenge = fmt.Sprintf("r=%sserver,s=%s,i=%d", nonce, base64.StdEncoding.EncodeToString([]byte(salt)), rounds)
		return reply(s.challenge, false)
	case command["saslContinue"] == nil:
		return nil
	case len(payload.Data) == 0:
		s.done = true
		return reply("", true)
	}
	mac := func(key []byte, text string) []byte {
		h := hmac.New(s.hash, key)
		h.Write([]byte(text))
		return h.Sum(nil)
	}
	bare, proof, _ := strings.Cut(string(payload.Data), ",p=")
	all := s.first + "," + s.challenge + "," + bare
	salted, err := pbkdf2.Key(s.hash, s.secret, []byte(salt), rounds, s.hash().Size())
	if err != nil {
		panic(err)
	}
	key := mac(salted, "Client Key")
	stored := s.hash()
	stored.Write(key)
	for i, b := range mac(stored.Sum(nil), all) {
		key[i] ^= b
	}
	if base64.StdEncoding.EncodeToString(key) != proof {
		return failed
	}
	return reply("v="+base64.StdEncoding.EncodeToString(mac(mac(salted, "Server Key"), all)), false)
}

// batch returns a reply with documents.
func batch(name string, id int64, docs ...any) any {
	if docs == nil {
		docs = []any{}
	}
	return bson.M{"cursor": bson.M{name: docs, "id": id, "ns": "app.orders"}, "ok": 1.0}
}

func texts(r engi.DocumentResult) string {
	all := make([]string, len(r.Documents))
	for i, d := range r.Documents {
		all[i] = string(d)
	}
	return strings.Join(all, "\n")
}

func TestMongoValues(t *testing.T) {
	decimal, err := bson.ParseDecimal128("1.10")
	if err != nil {
		t.Fatal(err)
	}
	oid := bson.ObjectID{1, 2, 3}
	values := bson.D{
		{Key: "double", Value: 1.5}, {Key: "whole", Value: 2.0}, {Key: "nan", Value: math.NaN()}, {Key: "inf", Value: math.Inf(-1)}, {Key: "text", Value: "ü\"<"}, {Key: "doc", Value: bson.D{{Key: "a", Value: bson.A{1, nil, "x"}}}},
		{Key: "bytes", Value: bson.Binary{Subtype: 4, Data: []byte{1, 2}}}, {Key: "none", Value: bson.Undefined{}}, {Key: "_id", Value: oid}, {Key: "yes", Value: true}, {Key: "at", Value: time.UnixMilli(1700000000123)}, {Key: "old", Value: time.UnixMilli(-1)},
		{Key: "null", Value: nil}, {Key: "regex", Value: bson.Regex{Pattern: "^a", Options: "i"}}, {Key: "pointer", Value: bson.DBPointer{DB: "x", Pointer: oid}}, {Key: "code", Value: bson.JavaScript("f()")}, {Key: "symbol", Value: bson.Symbol("s")},
		{Key: "scope", Value: bson.CodeWithScope{Code: "g()", Scope: bson.D{{Key: "x", Value: 1}}}}, {Key: "small", Value: int32(-7)}, {Key: "ts", Value: bson.Timestamp{T: 5, I: 6}}, {Key: "large", Value: int64(1) << 53}, {Key: "larger", Value: int64(1)<<53 + 1},
		{Key: "decimal", Value: decimal}, {Key: "min", Value: bson.MinKey{}}, {Key: "max", Value: bson.MaxKey{}},
	}
	f := &fakeMongo{answer: func(bson.M) any { return batch("firstBatch", 0, values) }}
	r, err := f.server().Documents(t.Context(), engi.DocumentQuery{Collection: "orders"})
	if err != nil || r.Error != nil || r.Truncated || len(r.Documents) != 1 {
		t.Fatal(r, err)
	}
	const want = `{"double":1.5,"whole":2.0,"nan":{"$numberDouble":"NaN"},"inf":{"$numberDouble":"-Infinity"},"text":"ü\"<","doc":{"a":[1,null,"x"]},` +
		`"bytes":{"$binary":{"base64":"AQI=","subType":"04"}},"none":{"$undefined":true},"_id":{"$oid":"010203000000000000000000"},"yes":true,"at":{"$date":"2023-11-14T22:13:20.123Z"},"old":{"$date":{"$numberLong":"-1"}},` +
		`"null":null,"regex":{"$regularExpression":{"pattern":"^a","options":"i"}},"pointer":{"$dbPointer":{"$ref":"x","$id":{"$oid":"010203000000000000000000"}}},"code":{"$code":"f()"},"symbol":{"$symbol":"s"},` +
		`"scope":{"$code":"g()","$scope":{"x":1}},"small":-7,"ts":{"$timestamp":{"t":5,"i":6}},"large":9007199254740992,"larger":{"$numberLong":"9007199254740993"},` +
		`"decimal":{"$numberDecimal":"1.10"},"min":{"$minKey":1},"max":{"$maxKey":1}}`
	if got := texts(r); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// The official library reads back what was written.
	before, err := bson.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	var again bson.D
	if err := bson.UnmarshalExtJSON(r.Documents[0], false, &again); err != nil {
		t.Fatal(err)
	}
	after, err := bson.Marshal(again)
	if err != nil {
		t.Fatal(err)
	}
	if string(before) != string(after) {
		t.Errorf("it is\n%s\nafterwards, was\n%s", bson.Raw(after), bson.Raw(before))
	}
}

func TestMongoQueries(t *testing.T) {
	f := &fakeMongo{answer: func(bson.M) any { return batch("firstBatch", 0) }}
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	for _, x := range []struct {
		q    engi.DocumentQuery
		want string
	}{
		{engi.DocumentQuery{Collection: "orders"}, `{"find":"orders","filter":{},"limit":1001,"batchSize":1001,"maxTimeMS":32000,"$db":"app"}`},
		{engi.DocumentQuery{Collection: "orders", Filter: raw(`{"total":{"$gt":5},"_id":{"$oid":"010203000000000000000000"}}`), Projection: raw(`{"total":1}`), Sort: raw(`{"b":-1,"a":1}`), Skip: 2, MaxRows: 3, Database: "other", Timeout: time.Second},
			`{"find":"orders","filter":{"total":{"$gt":5},"_id":{"$oid":"010203000000000000000000"}},"projection":{"total":1},"sort":{"b":-1,"a":1},"skip":2,"limit":4,"batchSize":4,"maxTimeMS":3000,"$db":"other"}`},
		{engi.DocumentQuery{Collection: "orders", Pipeline: raw(`[{"$group":{"_id":null,"n":{"$sum":1}}}]`)}, `{"aggregate":"orders","pipeline":[{"$group":{"_id":null,"n":{"$sum":1}}}],"cursor":{"batchSize":1001},"maxTimeMS":32000,"$db":"app"}`},
		{engi.DocumentQuery{Pipeline: raw(`[]`), MaxRows: 5000}, `{"aggregate":1,"pipeline":[],"cursor":{"batchSize":1001},"maxTimeMS":32000,"$db":"app"}`},
	} {
		var sent []byte
		s := f.server()
		dial := s.Dial
		s.Dial = func(ctx context.Context) (net.Conn, error) {
			c, err := dial(ctx)
			return &recorded{c, &sent}, err
		}
		if r, err := s.Documents(t.Context(), x.q); err != nil || r.Error != nil || len(r.Documents) != 0 {
			t.Errorf("%+v: %+v, %v", x.q, r, err)
		}
		if got, err := bson.MarshalExtJSON(bson.Raw(sent[21:]), false, false); err != nil || string(got) != x.want {
			t.Errorf("%+v:\ngot  %s %v\nwant %s", x.q, got, err, x.want)
		}
	}
	deep := strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200)
	for _, q := range []engi.DocumentQuery{
		{}, {Collection: "a\x00b"}, {Database: "admin", Collection: "orders"}, {Database: "Admin", Pipeline: raw(`[]`)}, {Collection: "system.users"}, {Collection: "orders", Filter: raw(`[]`)}, {Collection: "orders", Filter: raw(`{"a":`)}, {Collection: "orders", Filter: raw(`{"a":{"$oid":"x"}}`)}, {Collection: "orders", Filter: raw(deep)},
		{Collection: "orders", Skip: -1}, {Collection: "orders", MaxRows: -1}, {Collection: "orders", Pipeline: raw(`{}`)}, {Collection: "orders", Pipeline: raw(`[1]`)}, {Collection: "orders", Pipeline: raw(`[{}]`)}, {Collection: "orders", Pipeline: raw(`[]`), Filter: raw(`{}`)},
		{Collection: "orders", Filter: raw(`{"a":"` + strings.Repeat("x", engi.MaxQueryText) + `"}`)},
	} {
		if _, err := f.server().Documents(t.Context(), q); !engi.Is(err, engi.Invalid) {
			t.Errorf("%.100s %.100s: %v", q.Filter, q.Pipeline, err)
		}
	}
	if _, err := (database.Server{Type: engi.ServiceRedis}).Documents(t.Context(), engi.DocumentQuery{Collection: "orders"}); !engi.Is(err, engi.Unsupported) {
		t.Error(err)
	}
	for pipeline, want := range map[string]bool{"": false, `[]`: false, `[{"$match":{"$out":1}}]`: false, `[{"$match":{}},{"$out":"x"}]`: true, `[{"$merge":{"into":"x"}}]`: true, `nonsense`: false} {
		if got := database.Writes(engi.DocumentQuery{Pipeline: raw(pipeline)}); got != want {
			t.Errorf("%s writes: %v", pipeline, got)
		}
	}
}

// A recorded connection remembers the last message that it has sent.
type recorded struct {
	net.Conn
	sent *[]byte
}

func (r *recorded) Write(b []byte) (int, error) {
	*r.sent = append([]byte(nil), b...)
	return r.Conn.Write(b)
}

func TestMongoLimits(t *testing.T) {
	numbered := func(from, n int) (docs []any) {
		for i := range n {
			docs = append(docs, bson.D{{Key: "n", Value: from + i}})
		}
		return docs
	}
	f := &fakeMongo{answer: func(command bson.M) any {
		switch {
		case command["find"] != nil:
			return batch("firstBatch", 7, numbered(0, 2)...)
		case command["getMore"] != nil:
			if command["getMore"] != int64(7) || command["collection"] != "orders" {
				return bson.M{"ok": 0, "errmsg": "no cursor", "codeName": "CursorNotFound"}
			}
			return batch("nextBatch", 0, numbered(2, 3)...)
		}
		return bson.M{"ok": 1}
	}}
	for _, x := range []struct {
		q         engi.DocumentQuery
		rows      int
		truncated bool
		commands  string
	}{
		{engi.DocumentQuery{}, 5, false, "find getMore"},
		{engi.DocumentQuery{MaxRows: 5}, 5, false, "find getMore"},
		{engi.DocumentQuery{MaxRows: 4}, 4, true, "find getMore"},
		{engi.DocumentQuery{MaxRows: 1}, 1, true, "find killCursors"},
		{engi.DocumentQuery{MaxBytes: 40}, 2, true, "find getMore"},
		{engi.DocumentQuery{MaxBytes: 3}, 0, true, "find killCursors"},
	} {
		f.commands = nil
		x.q.Collection = "orders"
		r, err := f.server().Documents(t.Context(), x.q)
		if err != nil || len(r.Documents) != x.rows || r.Truncated != x.truncated || f.names() != x.commands {
			t.Errorf("%+v: %d documents, truncated %v, %s, %v", x.q, len(r.Documents), r.Truncated, f.names(), err)
		}
	}
}

func TestMongoErrors(t *testing.T) {
	f := &fakeMongo{answer: func(bson.M) any {
		return bson.M{"ok": 0.0, "errmsg": "unknown operator: $nix, not " + password, "code": 2, "codeName": "BadValue"}
	}}
	r, err := f.server().Documents(t.Context(), engi.DocumentQuery{Collection: "orders"})
	if err != nil || r.Error == nil || r.Error.Code != "BadValue" || r.Error.Text != "unknown operator: $nix, not *****" {
		t.Errorf("%+v, %v", r, err)
	}
	f.answer = func(bson.M) any {
		return bson.M{"ok": 0.0, "errmsg": "too slow", "code": 50, "codeName": "MaxTimeMSExpired"}
	}
	if _, err := f.server().Documents(t.Context(), engi.DocumentQuery{Collection: "orders"}); !engi.Is(err, engi.Expired) {
		t.Error(err)
	}
	s := f.server()
	s.Password = "wrong"
	if _, err := s.Documents(t.Context(), engi.DocumentQuery{Collection: "orders"}); !engi.Is(err, engi.Unavailable) || !strings.Contains(err.Error(), "Authentication failed") {
		t.Error(err)
	}
	f.answer = func(bson.M) any {
		return batch("firstBatch", 0, bson.D{{Key: "name", Value: "b"}, {Key: "type", Value: "view"}}, bson.D{{Key: "name", Value: "a"}, {Key: "type", Value: "collection"}}, bson.D{{Key: "name", Value: "system.views"}})
	}
	tables, err := f.server().Tables(t.Context(), engi.Query{})
	if err != nil || len(tables) != 2 || tables[0] != (engi.Table{Name: "a", Kind: "collection", Rows: -1, Bytes: -1}) || tables[1].Kind != "view" {
		t.Errorf("%+v, %v", tables, err)
	}
}

// TestMongodLogin logs in at servers that offer other mechanisms.
func TestMongodLogin(t *testing.T) {
	for _, mechs := range []any{nil, bson.A{"SCRAM-SHA-1"}, bson.A{"SCRAM-SHA-1", "SCRAM-SHA-256"}, bson.A{1, "PLAIN"}, "SCRAM-SHA-256"} {
		f := &fakeMongo{mongod: true, mechs: mechs, answer: func(bson.M) any { return batch("firstBatch", 0, bson.D{{Key: "a", Value: 1}}) }}
		if r, err := f.server().Documents(t.Context(), engi.DocumentQuery{Collection: "orders"}); err != nil || texts(r) != `{"a":1}` {
			t.Errorf("%v: %+v, %v", mechs, r, err)
		}
		s := f.server()
		s.Password = "wrong"
		if _, err := s.Documents(t.Context(), engi.DocumentQuery{Collection: "orders"}); !engi.Is(err, engi.Unavailable) || !strings.Contains(err.Error(), "Authentication failed") {
			t.Errorf("%v: %v", mechs, err)
		}
	}
}

// TestSetUp creates the user of a new mongod, which may exist already.
func TestSetUp(t *testing.T) {
	f := &fakeMongo{mongod: true, userless: true}
	for range 2 {
		if err := f.server().SetUp(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := bson.M{"createUser": "chief", "pwd": password, "roles": bson.A{bson.D{{Key: "role", Value: "root"}, {Key: "db", Value: "admin"}}}, "writeConcern": bson.D{{Key: "w", Value: int32(1)}, {Key: "j", Value: true}}, "$db": "admin"}
	if len(f.commands) != 1 || !cmp.Equal(f.commands[0], want) {
		t.Errorf("commands %v, want %v", f.commands, want)
	}
	// Somebody else has created the first user.
	s := f.server()
	s.Password = "another"
	f.answer = func(bson.M) any { return nil }
	if err := s.SetUp(t.Context()); !engi.Is(err, engi.Unavailable) || !strings.Contains(err.Error(), "not logged in") || strings.Contains(err.Error(), "another") {
		t.Error(err)
	}
	for name, f := range map[string]script{"hangs up": hangsUp, "rubbish": says(rubbish), "refuses": func(c net.Conn) {
		for {
			_, id, err := readMessage(c)
			if err != nil {
				return
			}
			if _, err := c.Write(message(id, document("\x08ok\x00\x00\x02errmsg\x00\x05\x00\x00\x00hush\x00"))); err != nil {
				return
			}
		}
	}} {
		s := hostile(engi.ServiceMongoDB, false, f)
		s.Users = "admin"
		if err := s.SetUp(t.Context()); !engi.Is(err, engi.Unavailable) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestLimit changes the roles of the user of a mongod, and is cut off between the changes.
func TestLimit(t *testing.T) {
	roles, left := []string{"readWrite", "root"}, -1
	f := &fakeMongo{mongod: true, answer: func(command bson.M) any {
		change := func() []string {
			var all []string
			for _, r := range command["roles"].(bson.A) {
				all = append(all, r.(string))
			}
			return all
		}
		refused := bson.M{"ok": 0.0, "errmsg": "no", "code": 51002, "codeName": "Location51002"}
		switch {
		case command["usersInfo"] == "chief":
			all := bson.A{}
			for _, r := range roles {
				all = append(all, bson.D{{Key: "role", Value: r}, {Key: "db", Value: "admin"}})
			}
			return bson.D{{Key: "users", Value: bson.A{bson.D{{Key: "user", Value: "chief"}, {Key: "roles", Value: all}}}}, {Key: "ok", Value: 1.0}}
		case left == 0:
			return bson.M{"ok": 0.0, "errmsg": "it is shutting down", "code": 91, "codeName": "ShutdownInProgress"}
		case command["createRole"] == "engi_full":
			return refused // it exists
		case command["grantRolesToUser"] == "chief":
			for _, r := range change() {
				if !slices.Contains(roles, r) {
					roles = append(roles, r)
				}
			}
		case command["revokeRolesFromUser"] == "chief":
			roles = slices.DeleteFunc(roles, func(r string) bool { return slices.Contains(change(), r) })
		default:
			return refused
		}
		left--
		return bson.M{"ok": 1.0}
	}}
	for _, full := range []bool{false, true, true, false, false} {
		for cut := range 3 {
			left = cut
			err := f.server().Limit(t.Context(), full)
			if err != nil && !engi.Is(err, engi.Unavailable) {
				t.Error(err)
			}
			if !slices.Contains(roles, "root") && !slices.Contains(roles, "engi_full") {
				t.Errorf("full %v, cut %d: the user has the roles %v", full, cut, roles)
			}
		}
		left = -1
		want := []string{"readWrite", "root"}
		if full {
			want[1] = "engi_full"
		}
		if err := f.server().Limit(t.Context(), full); err != nil || !cmp.Equal(roles, want) {
			t.Errorf("full %v: the user has the roles %v, %v", full, roles, err)
		}
	}
	s := f.server()
	s.Password = "wrong"
	if err := s.Limit(t.Context(), true); err != nil || !slices.Contains(roles, "root") {
		t.Errorf("a user with another password: %v", err)
	}
	for _, reply := range []any{bson.M{"ok": 1.0}, bson.M{"ok": 1.0, "users": bson.A{}}, bson.M{"ok": 1.0, "users": bson.A{1}}, bson.M{"ok": 1.0, "users": bson.A{bson.M{"roles": bson.A{bson.M{"role": 1}}}}}} {
		f.answer = func(bson.M) any { return reply }
		if err := f.server().Limit(t.Context(), true); !engi.Is(err, engi.Unavailable) {
			t.Errorf("%v: %v", reply, err)
		}
	}
}

// TestHostileLogin uses servers that do not know the password, or want it guessed.
func TestHostileLogin(t *testing.T) {
	const salt = ",s=MDEyMzQ1Njc4OWFiY2RlZg=="
	for _, x := range []struct {
		name      string
		challenge func(nonce string) string
		final     string
		done      bool
		want      string
	}{
		{"no nonce", func(string) string { return "r=" + salt + ",i=4096" }, "", false, "challenge"},
		{"the client's nonce alone", func(n string) string { return "r=" + n + salt + ",i=4096" }, "", false, "challenge"},
		{"another nonce", func(n string) string { return "r=x" + n + salt + ",i=4096" }, "", false, "challenge"},
		{"no salt", func(n string) string { return "r=" + n + "x,i=4096" }, "", false, "challenge"},
		{"a salt that is none", func(n string) string { return "r=" + n + "x,s=?,i=4096" }, "", false, "challenge"},
		{"an unknown extension", func(n string) string { return "m=1,r=" + n + "x" + salt + ",i=4096" }, "", false, "challenge"},
		{"few rounds", func(n string) string { return "r=" + n + "x" + salt + ",i=1" }, "", false, "rounds"},
		{"rounds below zero", func(n string) string { return "r=" + n + "x" + salt + ",i=-4096" }, "", false, "rounds"},
		{"too many rounds", func(n string) string { return "r=" + n + "x" + salt + ",i=2000000000" }, "", false, "rounds"},
		{"more rounds than a number holds", func(n string) string { return "r=" + n + "x" + salt + ",i=99999999999999999999" }, "", false, "rounds"},
		{"no signature", func(n string) string { return "r=" + n + "x" + salt + ",i=4096" }, "", true, "does not know the password"},
		{"another signature", func(n string) string { return "r=" + n + "x" + salt + ",i=4096" }, "v=MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=", true, "does not know the password"},
		{"an error as the signature", func(n string) string { return "r=" + n + "x" + salt + ",i=4096" }, "e=other-error", true, "does not know the password"},
	} {
		for _, mechs := range []bson.A{{"SCRAM-SHA-1"}, {"SCRAM-SHA-256"}} {
			s := hostile(engi.ServiceMongoDB, false, func(c net.Conn) {
				for {
					doc, id, err := readMessage(c)
					var command bson.M
					if err != nil || bson.Unmarshal(doc, &command) != nil {
						return
					}
					payload, _ := command["payload"].(bson.Binary)
					reply := bson.M{"ok": 1.0, "saslSupportedMechs": mechs, "conversationId": 1, "done": false}
					switch {
					case command["saslStart"] != nil:
						_, nonce, _ := strings.Cut(string(payload.Data), ",r=")
						reply["payload"] = bson.Binary{Data: []byte(x.challenge(nonce))}
					case command["saslContinue"] != nil:
						reply["payload"], reply["done"] = bson.Binary{Data: []byte(x.final)}, x.done
					case command["isMaster"] == nil:
						reply = bson.M{"ok": 1.0, "cursor": bson.M{"firstBatch": bson.A{}, "id": 0}}
					}
					raw, err := bson.Marshal(reply)
					if err != nil {
						return
					}
					if _, err := c.Write(message(id, raw)); err != nil {
						return
					}
				}
			})
			s.Users = "admin"
			if _, err := s.Documents(t.Context(), engi.DocumentQuery{Collection: "x"}); !engi.Is(err, engi.Unavailable) || !strings.Contains(err.Error(), x.want) {
				t.Errorf("%s, %s: %v", mechs[0], x.name, err)
			}
		}
	}
}

// TestMongoGrowth: a document of 4 MB with nothing but small values, which would be 50 MB of JSON, is left out.
func TestMongoGrowth(t *testing.T) {
	s := hostile(engi.ServiceMongoDB, true, says(message(1, found(strings.Repeat("\xff\x00", 2<<20)))))
	r, err := s.Documents(t.Context(), engi.DocumentQuery{Collection: "x"})
	if err != nil || len(r.Documents) != 0 || !r.Truncated {
		t.Errorf("%d documents, truncated %v, %v", len(r.Documents), r.Truncated, err)
	}
}
