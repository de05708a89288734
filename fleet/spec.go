package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/fleet/pool"
	"github.com/engi-dev/engi/guest/wire"
)

// Bounds of a program that no configuration raises: those of the guest's
// kernel and of its protocol.
const (
	maxPath    = 4095
	maxName    = 255
	maxArg     = 128<<10 - 1 // one string of argv or env
	maxArgs    = 1 << 20     // argv and env together
	maxKey     = 255
	minMemory  = 16 << 20
	minVCPUs   = 0.01
	minTimeout = time.Millisecond
)

// A job is an execution's spec, checked and complete.
type job struct {
	owner     engi.Owner
	template  engi.Template
	key       pool.Key
	size      engi.Size // wanted; the machine is resized to it
	limits    engi.Limits
	program   wire.Run // without an ID
	onEmpty   engi.EmptyPool
	patience  time.Duration
	idem      string
	print     string
	outputDir string
	network   engi.NetworkPolicy
}

// check says whether the node accepts spec for a sandbox of template, and
// fills in what it leaves open.
func (m *Manager) check(spec engi.ExecutionSpec, t engi.Template) (_ *job, err error) {
	p := spec.Program
	interp, ok := t.Languages[p.Language]
	if !ok && t.Partial {
		return nil, m.incomplete(t)
	}
	if !ok {
		return nil, engi.Errorf(engi.Unsupported, "template %s cannot run %s", t.Name, p.Language).
			WithRemedy("choose another template; 'engi template list' shows what each can run")
	}
	entry, err := m.checkProgram(p)
	if err != nil {
		return nil, err
	}
	tier, err := m.chooseTier(spec.MinTier)
	if err != nil {
		return nil, err
	}
	if err := m.checkNetwork(spec.Network); err != nil {
		return nil, err
	}
	limits, err := m.checkLimits(spec.Limits, t)
	if err != nil {
		return nil, err
	}
	if err := checkOutputDir(spec.OutputDir); err != nil {
		return nil, err
	}
	if len(spec.Idempotency) > maxKey {
		return nil, engi.Errorf(engi.Invalid, "idempotency key has %d bytes, %d at most", len(spec.Idempotency), maxKey)
	}
	j := &job{
		owner:     spec.Owner,
		template:  t,
		key:       pool.Key{Tier: tier, Template: spec.Template, Language: p.Language},
		size:      limits.Size,
		limits:    limits,
		idem:      spec.Idempotency,
		outputDir: spec.OutputDir,
		network:   spec.Network,
		program: wire.Run{
			Language:      p.Language,
			Interpreter:   interp.Path,
			Entry:         entry,
			Args:          p.Args,
			Env:           p.Env,
			Stdin:         p.Stdin,
			Timeout:       limits.Timeout,
			Output:        limits.Output,
			ArtifactBytes: limits.ArtifactBytes,
			ArtifactCount: limits.ArtifactCount,
			OutputDir:     spec.OutputDir,
		},
	}
	for _, f := range p.Files {
		j.program.Files = append(j.program.Files, wire.File{Path: f.Path, Mode: f.Mode, Data: f.Data})
	}
	if base := m.size(t); fixed(limits.Size) != fixed(base) {
		j.key.Size = fixed(limits.Size)
	}
	switch spec.OnEmpty {
	case "", engi.PoolWait, engi.PoolBootSync, engi.PoolReject:
		j.onEmpty = spec.OnEmpty
	default:
		return nil, engi.Errorf(engi.Invalid, "unknown policy %.40q for an empty pool", spec.OnEmpty).
			WithRemedy("use wait, boot_sync or reject")
	}
	if spec.ClaimTimeout < 0 || spec.ClaimTimeout > m.opt.MaxTimeout {
		return nil, engi.Errorf(engi.Invalid, "claim timeout %v is not between 0 and %v", spec.ClaimTimeout, m.opt.MaxTimeout)
	}
	j.patience = spec.ClaimTimeout
	j.network.Detail = nil // nobody is shown it again
	if j.idem != "" {
		j.print = fingerprint(spec)
	}
	return j, nil
}

// fixed is the part of a size that a machine keeps for life: it is set at
// boot, while processor time and memory can follow each request.
func fixed(s engi.Size) engi.Size {
	s.VCPUs, s.Memory = 0, 0
	return s
}

// size is what sandboxes of t get when nobody asks for more or less.
func (m *Manager) size(t engi.Template) engi.Size { return t.Size.Or(m.opt.Defaults.Size) }

func (m *Manager) checkProgram(p engi.Program) (entry string, err error) {
	if len(p.Files) == 0 {
		return "", engi.Errorf(engi.Invalid, "the program has no files").WithRemedy("send 'code' or 'files'")
	}
	if len(p.Files) > wire.MaxFiles {
		return "", engi.Errorf(engi.Invalid, "the program has %d files, %d at most", len(p.Files), wire.MaxFiles)
	}
	total := int64(len(p.Stdin))
	seen := make(map[string]bool, len(p.Files))
	for _, f := range p.Files {
		if err := checkPath(f.Path); err != nil {
			return "", err
		}
		if seen[f.Path] {
			return "", engi.Errorf(engi.Invalid, "file %.200q is there twice", f.Path)
		}
		seen[f.Path] = true
		if f.Mode&^0o777 != 0 {
			return "", engi.Errorf(engi.Invalid, "mode %#o of file %.200q is more than permission bits", f.Mode, f.Path)
		}
		if n := int64(len(f.Data)); n > m.opt.MaxCode {
			return "", engi.Errorf(engi.Invalid, "file %.200q has %d bytes, %d at most", f.Path, n, m.opt.MaxCode).
				WithRemedy("send less code, or make the program read its data from somewhere else")
		}
		total += int64(len(f.Data))
	}
	for name := range seen {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if seen[dir] {
				return "", engi.Errorf(engi.Invalid, "%.200q is both a file and a directory", dir)
			}
		}
	}
	if entry, err = chooseEntry(p, seen); err != nil {
		return "", err
	}
	strs, err := checkStrings(p.Args, p.Env)
	if err != nil {
		return "", err
	}
	if total += strs; total > m.opt.MaxInput {
		return "", engi.Errorf(engi.Invalid, "the program and its input have %d bytes, %d at most", total, m.opt.MaxInput)
	}
	return entry, nil
}

// checkPath accepts clean relative paths that stay where they begin.
func checkPath(p string) error {
	bad := func(why string) error {
		return engi.Errorf(engi.Invalid, "path %.200q %s", p, why).
			WithRemedy("use a relative, clean path with forward slashes below the working directory")
	}
	switch {
	case p == "":
		return bad("is empty")
	case len(p) > maxPath:
		return bad("is too long")
	case strings.ContainsRune(p, 0):
		return bad("has a NUL in it")
	case !utf8.ValidString(p):
		return bad("is not UTF-8")
	case p[0] == '/':
		return bad("is absolute")
	case p == ".." || strings.HasPrefix(p, "../") || strings.Contains(p, "/../") || strings.HasSuffix(p, "/.."):
		return bad("leads upwards")
	case p == "." || path.Clean(p) != p:
		return bad("is not clean")
	}
	for name := range strings.SplitSeq(p, "/") {
		if len(name) > maxName {
			return bad("has a name that is too long")
		}
	}
	return nil
}

func chooseEntry(p engi.Program, files map[string]bool) (string, error) {
	switch {
	case p.Entry != "" && !files[p.Entry]:
		return "", engi.Errorf(engi.Invalid, "entry %.200q is not one of the files", p.Entry)
	case p.Entry != "":
		return p.Entry, nil
	case len(p.Files) == 1:
		return p.Files[0].Path, nil
	case files[wire.Entry(p.Language)]:
		return wire.Entry(p.Language), nil
	}
	return "", engi.Errorf(engi.Invalid, "no entry says which of the %d files is to run", len(p.Files)).
		WithRemedy("name it in 'entry', or call it %s", wire.Entry(p.Language))
}

// checkStrings checks argv and env, and returns their bytes.
func checkStrings(args []string, env map[string]string) (total int64, err error) {
	one := func(what, s string) error {
		switch {
		case strings.ContainsRune(s, 0):
			return engi.Errorf(engi.Invalid, "%s has a NUL in it", what)
		case len(s) > maxArg:
			return engi.Errorf(engi.Invalid, "%s has %d bytes, %d at most", what, len(s), maxArg).
				WithRemedy("send it as a file or on standard input")
		}
		total += int64(len(s)) + 1
		return nil
	}
	for _, a := range args {
		if err := one("an argument", a); err != nil {
			return 0, err
		}
	}
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return 0, engi.Errorf(engi.Invalid, "%.80q is no name of an environment variable", k)
		}
		if err := one("environment variable "+k[:min(len(k), 80)], k+"="+v); err != nil {
			return 0, err
		}
	}
	if total > maxArgs {
		return 0, engi.Errorf(engi.Invalid, "arguments and environment have %d bytes, %d at most", total, maxArgs).
			WithRemedy("send them as a file or on standard input")
	}
	return total, nil
}

func checkOutputDir(dir string) error {
	if dir == "" {
		return nil
	}
	if path.Clean(dir) == "/" || dir == "." {
		return engi.Errorf(engi.Invalid, "output directory %.200q is not a place for output", dir)
	}
	if err := checkPath(strings.TrimPrefix(dir, "/")); err != nil {
		return engi.Errorf(engi.Invalid, "output directory: %w", err)
	}
	return nil
}

// strength orders tiers; the twin for tests is weaker than all.
var strength = map[engi.Tier]int{engi.TierMemory: 0, engi.TierScript: 1, engi.TierGVisor: 2, engi.TierMicroVM: 3}

// chooseTier returns the tier of the first provider that is strong enough.
func (m *Manager) chooseTier(least engi.Tier) (engi.Tier, error) {
	if least == "" {
		return m.opt.Providers[0].Tier(), nil
	}
	want, ok := strength[least]
	if !ok || least == engi.TierMemory {
		return "", engi.Errorf(engi.Invalid, "unknown tier %.40q", least).WithRemedy("use gvisor or microvm")
	}
	for _, p := range m.opt.Providers {
		if strength[p.Tier()] >= want {
			return p.Tier(), nil
		}
	}
	return "", engi.Errorf(engi.Unsupported, "nothing on this node is as strong as tier %s", least)
}

// checkLimits fills in what l leaves open, and reports Invalid for what is
// negative, more than the node allows or too little to live.
func (m *Manager) checkLimits(l engi.Limits, t engi.Template) (engi.Limits, error) {
	size, err := m.checkSize(l.Size, m.size(t))
	if err != nil {
		return l, err
	}
	l.Size = size
	if l.Timeout < 0 || l.Output < 0 || l.ArtifactBytes < 0 || l.ArtifactCount < 0 {
		return l, engi.Errorf(engi.Invalid, "negative limit").WithRemedy("leave a limit out to get its default")
	}
	l = orLimits(l, m.opt.Defaults)
	err = within([]bound{
		{"timeout", l.Timeout.Seconds(), m.opt.Max.Timeout.Seconds()},
		{"output", float64(l.Output), float64(m.opt.Max.Output)},
		{"artifact_bytes", float64(l.ArtifactBytes), float64(m.opt.Max.ArtifactBytes)},
		{"artifact_count", float64(l.ArtifactCount), float64(m.opt.Max.ArtifactCount)},
	})
	if err != nil {
		return l, err
	}
	if l.Timeout < minTimeout {
		return l, engi.Errorf(engi.Invalid, "limit timeout is %v, it must be %v at least", l.Timeout, minTimeout)
	}
	return l, nil
}

// checkSize is checkLimits for a size, whose zero fields are def's.
func (m *Manager) checkSize(s, def engi.Size) (engi.Size, error) {
	if err := s.Validate(); err != nil {
		return s, err
	}
	s = s.Or(def)
	most := m.opt.Max.Size
	err := within([]bound{
		{"vcpus", s.VCPUs, most.VCPUs},
		{"memory", float64(s.Memory), float64(most.Memory)},
		{"disk", float64(s.Disk), float64(most.Disk)},
		{"inodes", float64(s.Inodes), float64(most.Inodes)},
		{"processes", float64(s.Processes), float64(most.Processes)},
		{"open_files", float64(s.OpenFiles), float64(most.OpenFiles)},
	})
	switch {
	case err != nil:
		return s, err
	case s.Memory < minMemory:
		return s, engi.Errorf(engi.Invalid, "limit memory is %s, a sandbox needs %s at least", bytesText(float64(s.Memory)), bytesText(minMemory))
	case !(s.VCPUs >= minVCPUs): // NaN too
		return s, engi.Errorf(engi.Invalid, "limit vcpus is %g, a sandbox needs %g at least", s.VCPUs, minVCPUs)
	}
	return s, nil
}

// A bound is a limit that was asked for and the most the node allows.
type bound struct {
	name     string
	got, max float64
}

func within(all []bound) error {
	for _, b := range all {
		if b.got > b.max {
			return engi.Errorf(engi.Invalid, "limit %s is %s, this node allows %s", b.name, b.text(b.got), b.text(b.max)).
				WithRemedy("ask for %s or less", b.text(b.max))
		}
	}
	return nil
}

// text writes a number of a limit as people do: with the unit it has.
func (b bound) text(n float64) string {
	switch b.name {
	case "memory", "disk", "output", "artifact_bytes":
		return bytesText(n)
	case "timeout":
		return time.Duration(n * float64(time.Second)).String()
	}
	return strconv.FormatFloat(n, 'f', -1, 64)
}

// bytesText writes bytes in the largest unit, with at most two places after
// the point.
func bytesText(n float64) string {
	for _, u := range []struct {
		name  string
		bytes float64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.bytes {
			return strconv.FormatFloat(math.Round(n/u.bytes*100)/100, 'f', -1, 64) + u.name
		}
	}
	return strconv.FormatFloat(n, 'f', -1, 64) + "B"
}

// orLimits returns l with its zero fields taken from def.
func orLimits(l, def engi.Limits) engi.Limits {
	l.Size = l.Size.Or(def.Size)
	if l.Timeout == 0 {
		l.Timeout = def.Timeout
	}
	if l.Output == 0 {
		l.Output = def.Output
	}
	if l.ArtifactBytes == 0 {
		l.ArtifactBytes = def.ArtifactBytes
	}
	if l.ArtifactCount == 0 {
		l.ArtifactCount = def.ArtifactCount
	}
	return l
}

// fingerprint tells requests apart: equal specs have equal ones.
func fingerprint(spec engi.ExecutionSpec) string {
	h := sha256.New()
	// Encoding to a hash cannot fail: no type in a spec is one JSON refuses,
	// and maps are written in order of their keys.
	_ = json.NewEncoder(h).Encode(spec)
	return hex.EncodeToString(h.Sum(nil))
}

// knownLanguage reports Invalid for a language nobody has heard of.
func knownLanguage(l engi.Language) error {
	if slices.Contains(engi.Languages(), l) {
		return nil
	}
	var names []string
	for _, l := range engi.Languages() {
		names = append(names, string(l))
	}
	return engi.Errorf(engi.Invalid, "unknown language %.40q", l).WithRemedy("use one of %s", strings.Join(names, ", "))
}

// incomplete is the error for whoever needs more of a template than its first
// part.
func (m *Manager) incomplete(t engi.Template) error {
	err := error(engi.Errorf(engi.Unavailable, "only its first part is built"))
	if i, ok := m.opt.Templates.(interface{ Incomplete(name string) error }); ok {
		err = i.Incomplete(t.Name)
	}
	engi.Annotate(&err, "template %s", t.Name)
	return err
}
