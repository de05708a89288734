package engi

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of requests that no configuration can raise. They come from Linux, from the
// protocol between host and guest, or from reasonable use.
const (
	maxFaults = 20

	maxStrings = 10_000      // maximum number of arguments, and of variables
	maxString  = 128<<10 - 1 // bytes; maximum length of an argument, or of a variable with its name
	maxArgv    = 1 << 20     // bytes; maximum size of all arguments and variables together

	maxTemplate = 200     // bytes; maximum length of a template's name
	maxPairs    = 64      // maximum number of pairs of metadata
	maxPairKey  = 256     // bytes
	maxPairText = 4 << 10 // bytes; maximum length of a value of metadata
	maxNotes    = 1 << 20 // bytes; maximum size of all notes together
	maxVolumes  = 16      // maximum number of volumes of a sandbox
	maxRule     = 256     // bytes
	maxHost     = 255     // bytes

	minMemory  = 16 << 20
	minVCPUs   = 0.01
	minTimeout = time.Millisecond
)

// Bounds that other packages use, too.
const (
	MaxKey   = 255    // bytes; maximum length of an idempotency key
	MaxPath  = 4095   // bytes; maximum length of a path
	MaxName  = 255    // bytes; maximum length of one part of a path
	MaxFiles = 4096   // maximum number of files of a program
	MaxForks = 100    // maximum number of copies of a sandbox in one request
	MaxRules = 10_000 // maximum number of rules of a network policy

	MaxOutput         = 64 << 20  // bytes; maximum output of a process that is kept
	MaxEventData      = 256 << 10 // bytes; maximum size of the data of an event
	MaxCollaborators  = 100       // maximum number of collaborators of a workspace
	MaxWorkspaceFiles = 10_000    // maximum number of files of a workspace, and of a request that writes files

	MaxDocument = 8 << 20 // bytes; maximum size of a document
)

// Default values of the configuration, in bytes.
const (
	DefaultFile  = 8 << 20  // of [Bounds.File]
	DefaultInput = 32 << 20 // of [Bounds.Input]
)

// Bounds holds the maximum values that one node accepts. A zero field means no bound.
type Bounds struct {
	File         int64         // maximum size of one source file in bytes
	Input        int64         // maximum size of a program's files, input, arguments and environment together, in bytes
	Limits       Limits        // maximum limits of one execution or sandbox
	ClaimTimeout time.Duration // maximum claim timeout of an execution
	Lifetime     time.Duration // maximum time that a sandbox is awake without a break
}

// A Fault is one error in a request.
type Fault struct {
	Field  string // name of the field in the HTTP API, such as files[2].path or env.HOME; empty if the fault concerns no single field
	Detail string // description of the fault

	TooLarge bool // the value has more bytes than the server accepts
}

// Faults collects the faults of a request: the first fault of each field,
// and at most 20. The zero value has no faults.
type Faults []Fault

// Addf adds a fault.
func (f *Faults) Addf(field, format string, args ...any) {
	f.Add(Fault{Field: field, Detail: fmt.Sprintf(format, args...)})
}

// Add adds a fault.
func (f *Faults) Add(x Fault) {
	if len(*f) < maxFaults && !slices.ContainsFunc(*f, func(have Fault) bool { return have.Field == x.Field }) {
		*f = append(*f, x)
	}
}

// Size checks the size of a value in bytes. The hint says what to do with a larger value;
// it may be empty.
func (f *Faults) Size(field string, size, most int64, hint string) {
	if size > most {
		text := fmt.Sprintf("it has %d bytes, %s at most", size, boundText(most))
		if hint != "" {
			text += "; " + hint
		}
		f.Add(Fault{Field: field, Detail: text, TooLarge: true})
	}
}

// Err returns an Invalid error with the faults, or nil if there are none.
func (f Faults) Err() error {
	if len(f) == 0 {
		return nil
	}
	text := f[0].Detail
	if f[0].Field != "" {
		text = f[0].Field + ": " + text
	}
	if more := len(f) - 1; more > 0 {
		text = fmt.Sprintf("%s (and %d more)", text, more)
	}
	err := Errorf(Invalid, "%s", text)
	err.Faults, err.TooLarge = f, f[0].TooLarge
	return err
}

// Faults returns all faults of the spec on a node with the
// given bounds, except faults that depend on the template.
func (s ExecutionSpec) Faults(b Bounds) (f Faults) {
	f.program(s.Program, b)
	f.template(s.Template)
	f.Network("network", s.Network)
	f.limits(s.Limits, b.Limits)
	f.tier(s.MinTier)
	f.OneOf("on_empty", string(s.OnEmpty), string(PoolWait), string(PoolBootSync), string(PoolReject))
	f.duration("claim_timeout", s.ClaimTimeout, 0, b.ClaimTimeout)
	if d := s.OutputDir; d != "" {
		f.AbsolutePath("output_dir", d)
	}
	f.Key("header.Idempotency-Key", s.Idempotency)
	return f
}

// Limits of applies and edits of apps.
const (
	MaxApplyText    = 8 << 20  // bytes of a model's text
	MaxRevisionText = 200      // bytes of the message of a revision
	MaxEditPrompt   = 32 << 10 // bytes
	maxEditRounds   = 10
	maxAttempts     = 8
	maxJudgeCommand = 4 << 10 // bytes
	maxCriteria     = 8 << 10 // bytes
)

// Faults returns all faults of the spec.
func (s ApplySpec) Faults() (f Faults) {
	switch {
	case strings.TrimSpace(s.Text) == "":
		f.Addf("text", "it is missing: send the text of a model")
	default:
		f.Size("text", int64(len(s.Text)), MaxApplyText, "apply it in parts")
	}
	if len(s.Message) > MaxRevisionText {
		f.Addf("message", "it is longer than %d bytes", MaxRevisionText)
	}
	return f
}

// Bounds of actions on pages.
const (
	maxActionName = 128      // bytes
	maxActionData = 64 << 10 // bytes
)

// Faults returns all faults of the action.
func (a PageAction) Faults() (f Faults) {
	switch {
	case a.Action == "":
		f.Addf("action", "it is missing")
	case len(a.Action) > maxActionName:
		f.Addf("action", "it is longer than %d bytes", maxActionName)
	case !utf8.ValidString(a.Action) || strings.ContainsFunc(a.Action, func(r rune) bool { return !unicode.IsPrint(r) }):
		f.Addf("action", "it has characters that are not printable")
	}
	switch data := bytes.TrimLeft(a.Data, " \t\r\n"); {
	case len(a.Data) > maxActionData:
		f.Size("data", int64(len(a.Data)), maxActionData, "put it into a file of the session and send its path")
	case len(a.Data) > 0 && (!bytes.HasPrefix(data, []byte("{")) || !utf8.Valid(data) || !json.Valid(data)):
		f.Addf("data", `it is not an object, like {"id":"1"}`)
	}
	f.Text("agent", a.Agent)
	f.Text("model", a.Model)
	return f
}

// Bounds of queries.
const (
	MaxQueryText    = 1 << 20 // bytes of a query, and of all its arguments together
	maxQueryArgs    = 10_000
	MaxQueryRows    = 100_000
	MaxQueryBytes   = 16 << 20
	maxQueryTimeout = 10 * time.Minute
)

// Faults returns all faults of the query.
func (q Query) Faults() (f Faults) {
	if strings.TrimSpace(q.Text) == "" {
		f.Addf("text", "it is missing")
	}
	f.Size("text", int64(len(q.Text)), MaxQueryText, "")
	f.Text("text", q.Text)
	f.Text("database", q.Database)
	f.QueryArgs(len(q.Args))
	f.queryLimits(q.MaxRows, q.MaxBytes, q.Timeout)
	return f
}

// Faults returns all faults of the query.
func (q DocumentQuery) Faults() (f Faults) {
	f.Text("collection", q.Collection)
	f.Text("database", q.Database)
	if q.Collection == "" && len(q.Pipeline) == 0 {
		f.Addf("collection", "it is missing")
	}
	if q.Skip < 0 {
		f.Addf("skip", "it is less than 0")
	}
	size := 0
	for _, part := range []struct {
		name string
		kind byte // first character
		raw  json.RawMessage
	}{{"filter", '{', q.Filter}, {"projection", '{', q.Projection}, {"sort", '{', q.Sort}, {"pipeline", '[', q.Pipeline}} {
		if size += len(part.raw); len(part.raw) > 0 && part.raw[0] != part.kind {
			f.Addf(part.name, "it does not begin with %c", part.kind)
		}
	}
	f.Size("filter", int64(size), MaxQueryText, "")
	f.queryLimits(q.MaxRows, q.MaxBytes, q.Timeout)
	return f
}

func (f *Faults) queryLimits(rows int, bytes int64, timeout time.Duration) {
	if rows < 0 || rows > MaxQueryRows {
		f.Addf("max_rows", "it is not between 1 and %d", MaxQueryRows)
	}
	f.bytes("max_bytes", bytes, 0, MaxQueryBytes)
	f.duration("timeout", timeout, 0, maxQueryTimeout)
}

// QueryArgs checks the number of arguments of a query or a command.
func (f *Faults) QueryArgs(n int) {
	if n > maxQueryArgs {
		f.Addf("args", "there are %d, %d at most", n, maxQueryArgs)
	}
}

// maxSecret is the maximum size of a secret's value in bytes.
const maxSecret = 64 << 10

// Secret checks the value of a secret. The fault does not contain it.
func (f *Faults) Secret(value string) {
	if value == "" {
		f.Addf("value", "it is missing")
	}
	f.Size("value", int64(len(value)), maxSecret, "")
}

// Models returns the models that take turns in the attempts of an edit; an empty name is
// the node's default model.
func (s EditSpec) Models() []string {
	models := strings.Split(s.Model, ",")
	for i, m := range models {
		models[i] = strings.TrimSpace(m)
	}
	return models
}

// Faults returns all faults of the spec.
func (s EditSpec) Faults() (f Faults) {
	switch {
	case strings.TrimSpace(s.Prompt) == "":
		f.Addf("prompt", "it is missing: describe the change")
	default:
		f.Size("prompt", int64(len(s.Prompt)), MaxEditPrompt, "put long texts into a file of the app")
	}
	f.Text("prompt", s.Prompt)
	if s.Rounds < 0 || s.Rounds > maxEditRounds {
		f.Addf("max_rounds", "it is not between 1 and %d", maxEditRounds)
	}
	if s.MaxCost < 0 {
		f.Addf("max_cost", "it is negative")
	}
	models := len(s.Models())
	attempts := cmp.Or(s.Attempts, models)
	switch {
	case attempts < 0 || attempts > maxAttempts:
		f.Addf("attempts", "it is not between 1 and %d", maxAttempts)
	case models > attempts:
		f.Addf("attempts", "there are %d models: ask for as many attempts, or more", models)
	case attempts == 1 && (s.Judge != nil || s.Keep):
		f.Addf("attempts", "one attempt has no judge, and no branch to keep: ask for 2 or more")
	}
	if j := s.Judge; j != nil {
		if (j.Command == "") == (j.Model == "" && j.Criteria == "") {
			f.Addf("judge", "it is neither a command nor a model: send a command, or a model or criteria or both")
		}
		if len(j.Command) > maxJudgeCommand {
			f.Addf("judge.command", "it is longer than %s", bytesText(maxJudgeCommand))
		}
		if len(j.Criteria) > maxCriteria {
			f.Addf("judge.criteria", "they are longer than %s", bytesText(maxCriteria))
		}
		f.Text("judge.command", j.Command)
		f.Text("judge.model", j.Model)
		f.Text("judge.criteria", j.Criteria)
	}
	return f
}

// Faults returns all faults of the spec on a node with the
// given bounds, except faults that depend on the template or snapshot.
func (s SandboxSpec) Faults(b Bounds) (f Faults) {
	f.template(s.Template)
	if s.Template != "" && s.Snapshot != "" {
		f.Addf("snapshot", "there is a template already; send one of them")
	}
	if s.ID != "" && s.Snapshot == "" {
		f.Addf("id", "there is no snapshot")
	}
	f.template(s.Onto)
	if s.Onto != "" && s.Snapshot == "" {
		f.Addf("onto", "there is no snapshot")
	}
	f.size(s.Size, b.Limits.Size)
	f.tier(s.MinTier)
	f.lifetime(s.Lifetime, b.Lifetime)
	f.Metadata("metadata", s.Metadata)
	f.Env("env", s.Env)
	f.volumes("volumes", s.Volumes)
	f.Network("network", s.Network)
	f.Host("ports.host", s.Ports.Host)
	if q := s.CPUQuota; q.VCPUs < 0 || q.Window < 0 || (q.VCPUs > 0) != (q.Window > 0) {
		f.Addf("cpu_quota", "%v processors in %v", q.VCPUs, q.Window)
	}
	f.notes(s.Notes)
	f.Key("header.Idempotency-Key", s.Idempotency)
	return f
}

// Faults returns all faults of the update on a node with the
// given bounds.
func (u SandboxUpdate) Faults(b Bounds) (f Faults) {
	if u.Timeout != nil {
		f.duration("timeout", *u.Timeout, 0, b.Lifetime)
	}
	if u.Extend != nil {
		f.duration("timeout", *u.Extend, 0, b.Lifetime)
	}
	if u.Lifetime != nil {
		f.lifetime(*u.Lifetime, b.Lifetime)
	}
	if u.Metadata != nil {
		f.Metadata("metadata", *u.Metadata)
	}
	if u.Network != nil {
		f.Network("network", *u.Network)
	}
	if u.Ports != nil {
		f.Host("ports.host", u.Ports.Host)
	}
	if u.Notes != nil {
		f.notes(*u.Notes)
	}
	return f
}

// Faults returns the faults of limits, given their maximum values.
func (l Limits) Faults(most Limits) (f Faults) {
	f.limits(l, most)
	return f
}

// Faults returns the faults of a size, given its maximum.
func (s Size) Faults(most Size) (f Faults) {
	f.size(s, most)
	return f
}

// OneOf checks that word is empty or one of words.
func (f *Faults) OneOf(field, word string, words ...string) {
	if word != "" && !slices.Contains(words, word) {
		f.Addf(field, "%.40q is not one of %s", word, strings.Join(words, ", "))
	}
}

// Text checks that s is UTF-8 without NUL.
func (f *Faults) Text(field, s string) {
	if !isText(s) {
		f.Addf(field, "it is not UTF-8 text without NUL")
	}
}

func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// Path checks the relative path of a file below a directory.
func (f *Faults) Path(field, p string) {
	if why := pathFault(p); why != "" {
		f.Addf(field, "%s", why)
	}
}

// pathFault returns the fault of p unless p is a clean relative path that stays below its
// directory. It returns empty for such a path.
func pathFault(p string) string {
	switch {
	case p == "":
		return "it is empty"
	case len(p) > MaxPath:
		return fmt.Sprintf("it is longer than %d bytes", MaxPath)
	case !isText(p):
		return "it is not UTF-8 text without NUL"
	case p[0] == '/':
		return fmt.Sprintf("%.80q is absolute; paths are relative to the working directory", p)
	}
	clean := path.Clean(p)
	switch {
	case clean == ".." || strings.HasPrefix(clean, "../"):
		return fmt.Sprintf("%.80q leads out of the working directory", p)
	case clean == ".":
		return fmt.Sprintf("%.80q is a directory, not a file", p)
	case clean != p:
		return fmt.Sprintf("%.80q is not the plainest form of a file's path, which would be %.80q", p, clean)
	}
	return nameFault(p)
}

// nameFault returns the fault of a path with a part that is too long; empty if there is none.
func nameFault(p string) string {
	for name := range strings.SplitSeq(p, "/") {
		if len(name) > MaxName {
			return fmt.Sprintf("a name in it is longer than %d bytes", MaxName)
		}
	}
	return ""
}

// AbsolutePath checks the path of a directory or file in a sandbox, which must
// not be the root.
func (f *Faults) AbsolutePath(field, p string) {
	why := ""
	switch {
	case p == "":
		why = "it is missing"
	case len(p) > MaxPath:
		why = fmt.Sprintf("it is longer than %d bytes", MaxPath)
	case !isText(p):
		why = "it is not UTF-8 text without NUL"
	case !path.IsAbs(p) || path.Clean(p) != p || p == "/":
		why = fmt.Sprintf("%.80q is not a plain absolute path below /", p)
	default:
		why = nameFault(p)
	}
	if why != "" {
		f.Addf(field, "%s", why)
	}
}

// Env checks the variables of an environment, and returns their total size in bytes.
func (f *Faults) Env(field string, env map[string]string) (total int64) {
	if len(env) > maxStrings {
		f.Addf(field, "there are %d variables, %d at most", len(env), maxStrings)
	}
	bad := false
	for k, v := range env {
		total += int64(len(k)+len(v)) + 2
		bad = bad || variableFault(k, v) != ""
	}
	if total > maxArgv {
		f.Addf(field, "it has %d bytes, %d at most; send what is long as a file", total, maxArgv)
	}
	if bad {
		for _, k := range slices.Sorted(maps.Keys(env)) {
			if why := variableFault(k, env[k]); why != "" {
				f.Addf(fmt.Sprintf("%s.%.80s", field, strings.ToValidUTF8(k, "?")), "%s", why)
			}
		}
	}
	return total
}

func variableFault(k, v string) string {
	switch {
	case k == "" || strings.ContainsAny(k, "=\x00"):
		return fmt.Sprintf("%.40q cannot be the name of a variable", k)
	case strings.IndexByte(v, 0) >= 0:
		return "it has a NUL in it"
	case len(k)+len(v)+1 > maxString:
		return fmt.Sprintf("it has %d bytes, %d at most; send it as a file", len(k)+len(v)+1, maxString)
	}
	return ""
}

// Metadata checks the metadata by which owners find sandboxes.
func (f *Faults) Metadata(field string, md map[string]string) {
	if len(md) > maxPairs {
		f.Addf(field, "there are %d pairs, %d at most", len(md), maxPairs)
	}
	for _, k := range slices.Sorted(maps.Keys(md)) {
		switch v := md[k]; {
		case k == "" || len(k) > maxPairKey || len(v) > maxPairText:
			f.Addf(field, "the pair %.40q: keys have 1 to %d bytes, values %d at most", k, maxPairKey, maxPairText)
		case !isText(k) || !isText(v):
			f.Addf(field, "the pair %.40q is not UTF-8 text without NUL", k)
		}
	}
}

// Key checks an idempotency key.
func (f *Faults) Key(field, key string) {
	if len(key) > MaxKey {
		f.Addf(field, "it has %d bytes, %d at most", len(key), MaxKey)
	}
	f.Text(field, key)
}

// Host checks the value for the Host header of requests.
func (f *Faults) Host(field, host string) {
	if len(host) > maxHost || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' || r == '@' }) {
		f.Addf(field, "%.80q cannot be a host; use a name, with ${PORT} where the port belongs", host)
	}
}

// Network checks the form of a policy. Package egress checks the meaning of its rules.
func (f *Faults) Network(field string, p NetworkPolicy) {
	if p.Mode != "" && !slices.Contains(Networks(), p.Mode) {
		f.OneOf(field+".mode", string(p.Mode), names(Networks())...)
	}
	f.rules(field, "allow", p.Allow)
	f.rules(field, "deny", p.Deny)
}

func (f *Faults) rules(field, name string, rules []string) {
	if len(rules) > MaxRules {
		f.Addf(field+"."+name, "there are %d rules, %d at most", len(rules), MaxRules)
		return
	}
	for i, rule := range rules {
		if rule == "" || len(rule) > maxRule || !isText(rule) {
			f.Addf(fmt.Sprintf("%s.%s[%d]", field, name, i), "%.80q is not a name, address or network", rule)
		}
	}
}

func (f *Faults) template(name string) {
	if len(name) > maxTemplate {
		f.Addf("template", "it is longer than %d bytes", maxTemplate)
	}
	f.Text("template", name)
}

func (f *Faults) tier(t Tier) {
	f.OneOf("min_tier", string(t), string(TierScript), string(TierGVisor), string(TierMicroVM))
}

func (f *Faults) notes(notes map[string]string) {
	total := 0
	for k, v := range notes {
		total += len(k) + len(v)
	}
	if total > maxNotes {
		f.Addf("notes", "they have %d bytes, %d at most", total, maxNotes)
	}
}

// volumes checks that volumes are mounted where they hide no files that a
// sandbox needs, and that no volume is mounted inside another.
func (f *Faults) volumes(field string, all []VolumeMount) {
	if len(all) > maxVolumes {
		f.Addf(field, "there are %d, %d at most", len(all), maxVolumes)
		return
	}
	for i, v := range all {
		at := fmt.Sprintf("%s[%d]", field, i)
		if v.Volume == "" {
			f.Addf(at+".volume", "it is missing")
		}
		f.Text(at+".volume", v.Volume)
		f.AbsolutePath(at+".path", v.Path)
		for _, system := range []string{"/proc", "/sys", "/dev", "/.engi"} {
			if within(system, v.Path) {
				f.Addf(at+".path", "a volume cannot be at %.80q; choose a path outside %s", v.Path, system)
			}
		}
		for _, other := range all[:i] {
			if within(v.Path, other.Path) || within(other.Path, v.Path) {
				f.Addf(at+".path", "another volume is at %.80q", other.Path)
			}
		}
	}
}

// within reports whether p is dir or below it.
func within(dir, p string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// program checks the code and all inputs of a program.
func (f *Faults) program(p Program, b Bounds) {
	switch {
	case p.Language == "":
		f.Addf("language", "it is missing; use one of %s", strings.Join(names(Languages()), ", "))
	case !slices.Contains(Languages(), p.Language):
		f.OneOf("language", string(p.Language), names(Languages())...)
	}
	total := int64(len(p.Stdin)) + f.files(p.Files, b)
	if _, why := p.entry(); why != "" {
		f.Addf("entry", "%s", why)
	}
	if len(p.Args) > maxStrings {
		f.Addf("args", "there are %d, %d at most", len(p.Args), maxStrings)
	}
	var argv int64
	for i, a := range p.Args {
		argv += int64(len(a)) + 1
		switch {
		case strings.IndexByte(a, 0) >= 0:
			f.Addf(fmt.Sprintf("args[%d]", i), "it has a NUL in it")
		case len(a) > maxString:
			f.Addf(fmt.Sprintf("args[%d]", i), "it has %d bytes, %d at most; send it as a file or on standard input", len(a), maxString)
		}
	}
	argv += f.Env("env", p.Env)
	if argv > maxArgv {
		f.Addf("args", "arguments and environment have %d bytes, %d at most; send what is long as a file or on standard input", argv, maxArgv)
	}
	if total += argv; b.Input > 0 && total > b.Input {
		f.Add(Fault{Detail: fmt.Sprintf("the program and its input have %d bytes, %s at most; put large data into the template, or let the program fetch it", total, boundText(b.Input)), TooLarge: true})
	}
}

// files checks a program's files, and returns their total size in bytes.
func (f *Faults) files(files []SourceFile, b Bounds) (total int64) {
	switch {
	case len(files) == 0:
		f.Addf("code", "there is no program: send code, or files")
	case len(files) > MaxFiles:
		f.Addf("files", "there are %d, %d at most", len(files), MaxFiles)
		return 0
	}
	for i, file := range files {
		if why := pathFault(file.Path); why != "" {
			f.Addf(fmt.Sprintf("files[%d].path", i), "%s", why)
		}
		if file.Mode&^0o777 != 0 {
			f.Addf(fmt.Sprintf("files[%d].mode", i), "%#o is more than permission bits", file.Mode)
		}
		n := int64(len(file.Data))
		if b.File > 0 {
			f.Size(fmt.Sprintf("files[%d]", i), n, b.File, "send less code, or let the program read its data from elsewhere")
		}
		total += n
	}
	if len(files) < 2 {
		return total
	}
	seen := make(map[string]bool, len(files))
	for i, file := range files {
		if seen[file.Path] {
			f.Addf(fmt.Sprintf("files[%d].path", i), "%.80q is listed twice", file.Path)
		}
		seen[file.Path] = true
	}
	for i, file := range files {
		for dir := path.Dir(file.Path); dir != "." && dir != "/"; dir = path.Dir(dir) {
			if seen[dir] {
				f.Addf(fmt.Sprintf("files[%d].path", i), "%.80q is both a file and a directory", dir)
			}
		}
	}
	return total
}

func (f *Faults) limits(l, most Limits) {
	f.size(l.Size, most.Size)
	f.duration("timeout", l.Timeout, minTimeout, most.Timeout)
	f.bytes("output", l.Output, 0, most.Output)
	f.bytes("artifacts.max_bytes", l.ArtifactBytes, 0, most.ArtifactBytes)
	f.count("artifacts.max_count", int64(l.ArtifactCount), int64(most.ArtifactCount))
}

func (f *Faults) size(s, most Size) {
	switch plain := func(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) }; {
	case math.IsNaN(s.VCPUs) || math.IsInf(s.VCPUs, 0):
		f.Addf("vcpus", "%v is not a number of processors", s.VCPUs)
	default:
		between(f, "vcpus", s.VCPUs, minVCPUs, most.VCPUs, plain)
	}
	f.bytes("memory", s.Memory, minMemory, most.Memory)
	f.bytes("disk", s.Disk, 0, most.Disk)
	f.count("inodes", s.Inodes, most.Inodes)
	f.count("processes", int64(s.Processes), int64(most.Processes))
	f.count("open_files", int64(s.OpenFiles), int64(most.OpenFiles))
}

func (f *Faults) lifetime(l Lifetime, most time.Duration) {
	f.duration("timeout", l.Timeout, 0, most)
	f.duration("idle_timeout", l.Idle, 0, 0)
	f.duration("max_duration", l.Max, 0, most)
	if l.Max > 0 && l.Timeout > l.Max {
		f.Addf("timeout", "%v is more than the sandbox's own maximum of %v", l.Timeout, l.Max)
	}
	f.OneOf("on_timeout", string(l.OnTimeout), string(EndKill), string(EndHibernate))
}

func (f *Faults) duration(field string, d, least, most time.Duration) {
	between(f, field, d, least, most, time.Duration.String)
}

func (f *Faults) bytes(field string, n, least, most int64) {
	between(f, field, n, least, most, bytesText)
}

func (f *Faults) count(field string, n, most int64) {
	between(f, field, n, 0, most, func(n int64) string { return strconv.FormatInt(n, 10) })
}

// between checks that a number is 0, which stands for a default, or at least
// least and at most most. If most is 0, there is no upper bound.
func between[N ~int64 | ~float64](f *Faults, field string, n, least, most N, text func(N) string) {
	switch {
	case n < 0:
		f.Addf(field, "%s is negative; leave it out to get the default", text(n))
	case n != 0 && n < least:
		f.Addf(field, "%s is too little, it must be %s at least", text(n), text(least))
	case most > 0 && n > most:
		f.Addf(field, "%s is more than this node allows, which is %s", text(n), text(most))
	}
}

// boundText returns a bound in bytes, without rounding it.
func boundText(n int64) string {
	if n%(1<<10) != 0 {
		return strconv.FormatInt(n, 10) + "B"
	}
	return bytesText(n)
}

// bytesText returns a size in the largest suitable unit, with at most two decimals.
func bytesText(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.bytes {
			return strconv.FormatFloat(math.Round(float64(n)/float64(u.bytes)*100)/100, 'f', -1, 64) + u.name
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

func names[T ~string](all []T) []string {
	list := make([]string, len(all))
	for i, v := range all {
		list[i] = string(v)
	}
	return list
}
