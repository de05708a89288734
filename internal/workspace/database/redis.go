package database

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/engi-dev/engi/internal/clip"
	"github.com/engi-dev/engi/internal/engi"
)

const (
	maxReply      = 1 << 20 // maximum bytes of a reply of Redis
	maxReplyDepth = 32
)

// endless are the commands of Redis that have no reply, or an endless one.
var endless = map[string]string{
	"SUBSCRIBE": "messages come without end", "PSUBSCRIBE": "messages come without end", "SSUBSCRIBE": "messages come without end",
	"MONITOR": "it prints commands without end", "SYNC": "it copies the database without end", "PSYNC": "it copies the database without end",
	"CLIENT REPLY": "there would be no reply", "SHUTDOWN": "the service would be started again", "REPLCONF": "it is for replicas",
}

// Command runs a command of Redis. The reply is converted to JSON: status, bulk and verbatim
// strings to strings, or {"base64": …} if they are not UTF-8; errors to {"error": …}; maps
// to objects, or lists of pairs if a key is not a string; integers that are not exact as a float64,
// big numbers, and doubles that are not finite, to strings. The time limit is
// [DefaultTimeout].
func (s Server) Command(ctx context.Context, args []string) (engi.CommandReply, error) {
	if s.Type != engi.ServiceRedis {
		return engi.CommandReply{}, engi.Errorf(engi.Unsupported, "a service of type %s has no commands of Redis", s.Type).WithRemedy("name a service of type redis")
	}
	if len(args) == 0 || args[0] == "" {
		return engi.CommandReply{}, engi.Errorf(engi.Invalid, "the command is empty")
	}
	size := 0
	for _, a := range args {
		size += len(a)
	}
	var f engi.Faults
	f.QueryArgs(len(args))
	f.Size("args", int64(size), engi.MaxQueryText, "")
	if err := f.Err(); err != nil {
		return engi.CommandReply{}, err
	}
	name := strings.ToUpper(args[0])
	why := endless[name]
	if why == "" && len(args) > 1 {
		why = endless[name+" "+strings.ToUpper(args[1])]
	}
	if why != "" {
		return engi.CommandReply{}, engi.Errorf(engi.Unsupported, "%s: %s", clip.Text(name, maxErrText), why).WithRemedy("use a client in a sandbox of the workspace")
	}
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	reply, err := s.command(ctx, args)
	if err == nil {
		err = ctx.Err() // a killed script has a reply, too
	}
	if err != nil {
		return engi.CommandReply{}, s.classify(ctx, "run a command of redis", err)
	}
	return reply, nil
}

// A redis is a connection to a Redis server.
type redis struct {
	*link
	r *bufio.Reader
}

func (s Server) openRedis(ctx context.Context) (*redis, error) {
	c, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	r := &redis{link: c, r: bufio.NewReader(c)}
	release := guard(ctx, c, nil)
	defer release()
	hello := []string{"HELLO", "3"}
	if s.Password != "" {
		user := s.User
		if user == "" {
			user = "default"
		}
		hello = append(hello, "AUTH", user, s.Password)
	}
	if _, err = r.do(hello); err == nil && s.Database != "" {
		_, err = r.do([]string{"SELECT", s.Database})
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	c.left.Store(maxReply + 64<<10) // for the reply outside of values
	return r, nil
}

// do runs a command of this package, whose errors are refusals.
func (r *redis) do(args []string) (json.RawMessage, error) {
	if err := r.send(args); err != nil {
		return nil, err
	}
	kind, err := r.r.Peek(1)
	if err != nil {
		return nil, err
	}
	reply, err := r.reply(0)
	if err == nil && (kind[0] == '-' || kind[0] == '!') {
		return nil, &refusal{engi.QueryError{Text: string(reply), Code: "redis"}}
	}
	return reply, err
}

func (s Server) command(ctx context.Context, args []string) (engi.CommandReply, error) {
	r, err := s.openRedis(ctx)
	if err != nil {
		return engi.CommandReply{}, err
	}
	defer r.Close()
	cancel := func(context.Context) {} // Redis forgets a client that waits for a key when its connection closes
	switch strings.ToUpper(args[0]) {
	case "EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO":
		cancel = s.killScript
	}
	defer guard(ctx, r, func(ctx context.Context) {
		cancel(ctx)
		r.Close()
	})()
	if err := r.send(args); err != nil {
		return engi.CommandReply{}, err
	}
	for {
		head, err := r.r.Peek(1)
		if err != nil {
			return engi.CommandReply{}, err
		}
		kind := head[0] // reading the reply overwrites head
		value, err := r.reply(0)
		if err != nil || kind != '>' { // otherwise it is an unrequested message
			return engi.CommandReply{Value: value, Refused: kind == '-' || kind == '!'}, err
		}
	}
}

// killScript ends the script that the server is running, unless the script has written something.
func (s Server) killScript(ctx context.Context) {
	// The server only accepts this for a script that has run for some seconds.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*patience)
	defer cancel()
	c, err := s.dial(ctx)
	if err != nil {
		return
	}
	defer c.Close()
	defer guard(ctx, c, nil)()
	r := &redis{link: c, r: bufio.NewReader(c)}
	if s.Password != "" {
		if _, err := r.do([]string{"AUTH", s.User, s.Password}); err != nil {
			return
		}
	}
	_, _ = r.do([]string{"SCRIPT", "KILL"})
	_, _ = r.do([]string{"FUNCTION", "KILL"})
}

func (r *redis) send(args []string) error {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	_, err := r.Write(b)
	return err
}

// line reads one line.
func (r *redis) line() (string, error) {
	line, err := r.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return "", nonsense("a line is too long")
	}
	if err != nil {
		return "", err
	}
	line, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok || len(line) == 0 {
		return "", nonsense("a line does not end, or is empty")
	}
	return string(line), nil
}

// length parses the length of a value; -1 means null, and -2 an unknown length.
func length(s string) (int, error) {
	if s == "?" {
		return -2, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < -1 {
		return 0, nonsense("a length is none")
	}
	return n, nil
}

// reply reads a reply. Its size is limited by the bytes that the server may send.
func (r *redis) reply(depth int) (json.RawMessage, error) {
	if depth > maxReplyDepth {
		return nil, nonsense("a reply is nested too deeply")
	}
	line, err := r.line()
	if err != nil {
		return nil, err
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return bulk([]byte(rest)), nil
	case '-':
		return failure([]byte(rest)), nil
	case ':', '(':
		if _, err := strconv.ParseInt(rest, 10, 64); err != nil && kind == ':' {
			return nil, nonsense("an integer is none")
		}
		return number([]byte(strings.TrimPrefix(rest, "+"))), nil
	case ',':
		f, err := strconv.ParseFloat(rest, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			return nil, nonsense("a double is none")
		}
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return text([]byte(rest)), nil
		}
		return float([]byte(rest)), nil
	case '#':
		if rest != "t" && rest != "f" {
			return nil, nonsense("a boolean is none")
		}
		return json.RawMessage(strconv.FormatBool(rest == "t")), nil
	case '_':
		return null, nil
	case '$', '=', '!':
		return r.bulk(kind, rest)
	case '*', '~', '>', '%', '|':
		return r.aggregate(kind, rest, depth)
	}
	return nil, nonsense("a reply is of no kind that there is")
}

func (r *redis) bulk(kind byte, rest string) (json.RawMessage, error) {
	n, err := length(rest)
	switch {
	case err != nil:
		return nil, err
	case n == -1:
		return null, nil
	case n < 0:
		return nil, nonsense("a string has no length")
	case int64(n) > r.left.Load()+int64(r.r.Buffered()):
		return nil, errFlood
	}
	b := make([]byte, n+2)
	if _, err := io.ReadFull(r.r, b); err != nil {
		return nil, err
	}
	b, ok := bytes.CutSuffix(b, []byte("\r\n"))
	if !ok {
		return nil, nonsense("a string is not as long as it says")
	}
	switch {
	case kind == '!':
		return failure(b), nil
	case kind == '=' && len(b) >= 4 && b[3] == ':':
		b = b[4:] // a prefix tells plain text from Markdown
	}
	return bulk(b), nil
}

func (r *redis) aggregate(kind byte, rest string, depth int) (json.RawMessage, error) {
	n, err := length(rest)
	switch {
	case err != nil:
		return nil, err
	case n == -1:
		return null, nil
	case n < 0:
		return nil, nonsense("a list has no length")
	case int64(n) > maxReply/2:
		return nil, errFlood
	}
	if kind == '%' || kind == '|' {
		n *= 2
	}
	var items []json.RawMessage
	for range n {
		item, err := r.reply(depth + 1)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	switch kind {
	case '|': // attributes of the reply that follows, which are ignored
		return r.reply(depth + 1)
	case '%':
		return object(items), nil
	}
	return list(items), nil
}

func list(items []json.RawMessage) json.RawMessage {
	return append(append(json.RawMessage("["), bytes.Join(raw(items), []byte(","))...), ']')
}

func raw(items []json.RawMessage) [][]byte {
	b := make([][]byte, len(items))
	for i, item := range items {
		b[i] = item
	}
	return b
}

// object converts keys and values to an object, or to a list of pairs.
func object(items []json.RawMessage) json.RawMessage {
	seen := map[string]bool{}
	isObject := true
	for i := 0; i < len(items); i += 2 {
		isObject = isObject && items[i][0] == '"' && !seen[string(items[i])]
		seen[string(items[i])] = true
	}
	var parts []json.RawMessage
	for i := 0; i < len(items); i += 2 {
		if isObject {
			parts = append(parts, bytes.Join(raw(items[i:i+2]), []byte(":")))
		} else {
			parts = append(parts, list(items[i:i+2]))
		}
	}
	if !isObject {
		return list(parts)
	}
	return append(append(json.RawMessage("{"), bytes.Join(raw(parts), []byte(","))...), '}')
}

func bulk(b []byte) json.RawMessage {
	if utf8.Valid(b) {
		return text(b)
	}
	return json.RawMessage(`{"base64":` + string(blob(b)) + `}`)
}

func failure(b []byte) json.RawMessage {
	return json.RawMessage(`{"error":` + string(text(b)) + `}`)
}
