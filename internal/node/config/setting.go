package config

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	v1 "github.com/engi-dev/engi/api/v1"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/spelling"
)

// Bytes is a size, in the same notation as on the wire: "512MiB", or a number.
type Bytes v1.Bytes

// UnmarshalText parses a size. It reports Invalid.
func (b *Bytes) UnmarshalText(text []byte) error {
	v, err := v1.ParseBytes(strings.TrimSpace(string(text)))
	if err != nil {
		return engi.Errorf(engi.Invalid, "%v", err)
	}
	*b = Bytes(v)
	return nil
}

// MarshalText writes b in the largest binary unit that divides it.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// String returns the text form.
func (b Bytes) String() string { return v1.Bytes(b).String() }

// Duration is a duration, in the same notation as on the wire: "30s", "5m", "7d".
type Duration v1.Duration

// UnmarshalText parses a duration. It reports Invalid.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := v1.ParseDuration(strings.TrimSpace(string(text)))
	if err != nil {
		return engi.Errorf(engi.Invalid, "%v", err)
	}
	*d = Duration(v)
	return nil
}

// MarshalText returns d without trailing zero parts.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String returns the text form.
func (d Duration) String() string {
	v := time.Duration(d)
	if v != 0 && v%(24*time.Hour) == 0 {
		return fmt.Sprintf("%dd", v/(24*time.Hour))
	}
	s := v.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// A Key is one setting of a struct.
type Key struct {
	Name     string // name with dots: "limits.memory"
	Variable string // environment variable: ENGI_LIMITS_MEMORY; empty for tables, which only files and --set can set
	Help     string
	Value    reflect.Value
}

var textual = reflect.TypeFor[encoding.TextUnmarshaler]()

// Keys returns the keys of the struct that ptr points to, in the order of
// its fields. Names come from toml tags, texts from help tags.
func Keys(ptr any) []Key { return keys(reflect.ValueOf(ptr).Elem(), "") }

func keys(v reflect.Value, prefix string) []Key {
	var all []Key
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name := prefix + f.Tag.Get("toml")
		if f.Type.Kind() == reflect.Struct && !reflect.PointerTo(f.Type).Implements(textual) {
			all = append(all, keys(v.Field(i), name+".")...)
			continue
		}
		k := Key{Name: name, Help: f.Tag.Get("help"), Value: v.Field(i)}
		if f.Tag.Get("env") != "-" {
			k.Variable = variable(name)
		}
		all = append(all, k)
	}
	return all
}

// variable returns the environment variable of a key.
func variable(key string) string {
	return "ENGI_" + strings.ToUpper(strings.ReplaceAll(key, ".", "_"))
}

// set sets one key to a value from a command line. Elements of lists are separated
// by commas. It reports Invalid.
func set(ptr any, key, value string) error {
	for _, k := range Keys(ptr) {
		if k.Name != key {
			continue
		}
		literals := []string{value, quote(value)}
		if k.Value.Kind() == reflect.Slice && !strings.HasPrefix(value, "[") {
			var items []string
			for item := range strings.SplitSeq(value, ",") {
				if item = strings.TrimSpace(item); item != "" && item != "none" {
					items = append(items, quote(item))
				}
			}
			literals = []string{"[" + strings.Join(items, ",") + "]"}
		}
		if k.Value.Kind() == reflect.String {
			literals = []string{quote(value)}
		}
		old := reflect.New(k.Value.Type())
		old.Elem().Set(k.Value)
		k.Value.SetZero()
		var err error
		for _, l := range literals {
			if err = toml.Unmarshal([]byte(key+" = "+l+"\n"), ptr); err == nil {
				return nil
			}
		}
		k.Value.Set(old.Elem())
		return engi.Errorf(engi.Invalid, "%s: %s", key, explain(err))
	}
	return unknown(key, ptr)
}

func quote(s string) string { return strconv.Quote(s) }

// check returns an Invalid error for each key in a decoded file that the struct does
// not have, and suggests the nearest one.
func check(file map[string]any, t reflect.Type, prefix string) (faults []error) {
	fields := map[string]reflect.Type{}
	for i := range t.NumField() {
		fields[t.Field(i).Tag.Get("toml")] = t.Field(i).Type
	}
	for _, name := range slices.Sorted(maps.Keys(file)) {
		ft, ok := fields[name]
		if !ok {
			err := engi.Errorf(engi.Invalid, "unknown key %s%s", prefix, name)
			if near := spelling.Nearest(name, slices.Sorted(maps.Keys(fields))); otherNames[name] != "" {
				err = err.WithRemedy("engi calls it %s", otherNames[name])
			} else if near != "" {
				err = err.WithRemedy("did you mean %s%s?", prefix, near)
			} else {
				err = err.WithRemedy("'engi config show' lists every key")
			}
			faults = append(faults, err)
			continue
		}
		switch sub := file[name].(type) {
		case map[string]any:
			if ft.Kind() == reflect.Struct {
				faults = append(faults, check(sub, ft, prefix+name+".")...)
			}
			if ft.Kind() == reflect.Map && ft.Elem().Kind() == reflect.Struct {
				for _, key := range slices.Sorted(maps.Keys(sub)) {
					if m, ok := sub[key].(map[string]any); ok {
						faults = append(faults, check(m, ft.Elem(), prefix+name+"."+key+".")...)
					}
				}
			}
		case []any:
			for i, item := range sub {
				if m, ok := item.(map[string]any); ok && ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct {
					faults = append(faults, check(m, ft.Elem(), fmt.Sprintf("%s%s[%d].", prefix, name, i))...)
				}
			}
		}
	}
	return faults
}

// otherNames maps names of keys in other sandbox servers to names of this one.
var otherNames = map[string]string{
	"pool": "[[pools]], and [admission] for all pools together", "language_pools": "[[pools]], one for each language",
	"target_pool_size": "target of [[pools]]", "pool_size": "target of [[pools]]",
	"max_vms": "admission.max_sandboxes, and max of [[pools]]", "empty_pool_policy": "admission.on_empty, and on_empty of [[pools]]",
	"claim_timeout_seconds": "admission.claim_timeout, and claim_timeout of [[pools]]",
	"default_limits":        "[limits]", "memory_mb": "memory, a size like \"512MiB\"", "disk_mb": "disk, a size like \"1GiB\"",
	"timeout_seconds": "timeout, a duration like \"30s\"", "network_mode": "mode of [network]",
}

// mistakes joins several errors of a configuration into one; nil if there are none.
func mistakes(all []error) error {
	all = slices.DeleteFunc(all, func(err error) bool { return err == nil })
	if len(all) < 2 {
		return cmp.Or(all...)
	}
	text := fmt.Sprintf("%d mistakes:", len(all))
	for _, err := range all {
		text += "\n- " + err.Error()
		if remedy := remedyIn(err); remedy != "" {
			text += " (" + remedy + ")"
		}
	}
	return engi.Errorf(engi.Invalid, "%s", text).WithRemedy("correct each of them")
}

func unknown(key string, ptr any) error {
	var names []string
	for _, k := range Keys(ptr) {
		names = append(names, k.Name)
	}
	err := engi.Errorf(engi.Invalid, "unknown key %s", key)
	if near := spelling.Nearest(key, names); near != "" {
		return err.WithRemedy("did you mean %s?", near)
	}
	return err.WithRemedy("'engi config show' lists every key")
}

// flatten returns the keys of a decoded file, with dots between levels.
func flatten(file map[string]any) []string {
	var all []string
	for name, v := range file {
		if sub, ok := v.(map[string]any); ok {
			for _, k := range flatten(sub) {
				all = append(all, name+"."+k)
			}
			continue
		}
		all = append(all, name)
	}
	return all
}

// explain returns the message of a TOML error with its position.
func explain(err error) string {
	var at *toml.DecodeError
	if errors.As(err, &at) {
		row, col := at.Position()
		text := fmt.Sprintf("line %d, column %d: %s", row, col, strings.TrimPrefix(at.Error(), "toml: "))
		if remedy := remedyIn(err); remedy != "" {
			text += " (" + remedy + ")"
		}
		return text
	}
	return err.Error()
}

func remedyIn(err error) string {
	var ours *engi.Error
	if errors.As(err, &ours) {
		return ours.Remedy
	}
	return ""
}

// isRoot reports whether the user is root. It returns false in the user namespace that engi creates
// for itself and that maps a single user to root, so that the user's directories
// are used.
func isRoot() bool {
	if os.Geteuid() != 0 {
		return false
	}
	var in, out, size int64
	if m, err := os.ReadFile("/proc/self/uid_map"); err == nil {
		if _, err := fmt.Sscan(string(m), &in, &out, &size); err == nil {
			return out == 0 || size > 1
		}
	}
	return true
}

// dataDir returns the default data directory of this user.
func dataDir() string {
	if isRoot() {
		return "/var/lib/engi"
	}
	return home("XDG_DATA_HOME", ".local/share")
}

// cacheDir returns the default cache directory of this user.
func cacheDir() string {
	if isRoot() {
		return "/var/cache/engi"
	}
	return home("XDG_CACHE_HOME", ".cache")
}

func home(variable, below string) string {
	if dir := os.Getenv(variable); filepath.IsAbs(dir) {
		return filepath.Join(dir, "engi")
	}
	if dir, err := os.UserHomeDir(); err == nil {
		return filepath.Join(dir, below, "engi")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("engi-%d", os.Geteuid()))
}
