package main

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
)

type configCommand struct {
	Show  configShow  `cmd:"" help:"Print the configuration in effect and where each value comes from."`
	Check configCheck `cmd:"" help:"Check a configuration file."`
}

type configShow struct {
	Key string `arg:"" optional:"" help:"Print only the value of this key." placeholder:"KEY"`
}

func (configShow) Help() string {
	return `Without --json, prints a valid config.toml.

Examples:
  engi config show
  engi config show cache_dir
  ENGI_LIMITS_MEMORY=1GiB engi config show --json`
}

func (s configShow) Run(g *globals) error {
	c, from, err := g.config()
	if err != nil {
		return err
	}
	if s.Key != "" {
		for _, k := range config.Keys(&c) {
			if k.Name == s.Key {
				if g.JSON {
					return g.printJSON(plain(k.Value))
				}
				fmt.Fprintln(g.out, plain(k.Value))
				return nil
			}
		}
		return engi.Errorf(engi.NotFound, "there is no key %.40q", s.Key).WithRemedy("'engi config show' lists every key")
	}
	if g.JSON {
		type entry struct {
			Value  any    `json:"value"`
			Source string `json:"source"`
		}
		all := map[string]entry{}
		for _, k := range config.Keys(&c) {
			all[k.Name] = entry{plain(k.Value), source(from, k.Name)}
		}
		return g.printJSON(all)
	}
	printConfig(g, c, from)
	return nil
}

func printConfig(g *globals, c config.Config, from config.Sources) {
	section := ""
	for _, k := range config.Keys(&c) {
		name := k.Name
		if s, rest, ok := strings.Cut(name, "."); ok {
			if s != section {
				fmt.Fprintf(g.out, "\n[%s]\n", s)
				section = s
			}
			name = rest
		}
		if pools, ok := k.Value.Interface().([]config.Pool); ok {
			// Tables must come last in a file.
			fmt.Fprintf(g.out, "\n# %s; %s\n", k.Help, source(from, k.Name))
			for _, p := range pools {
				fmt.Fprintf(g.out, "[[pools]]\ntemplate = %q\nlanguage = %q\ntarget = %d\nmax = %d\n", p.Template, p.Language, p.Target, p.Max)
				if p.OnEmpty != "" {
					fmt.Fprintf(g.out, "on_empty = %q\n", p.OnEmpty)
				}
				if p.ClaimTimeout != 0 {
					fmt.Fprintf(g.out, "claim_timeout = %q\n", p.ClaimTimeout)
				}
			}
			continue
		}
		fmt.Fprintf(g.out, "%s = %s # %s; %s\n", name, literal(k.Value), k.Help, source(from, k.Name))
	}
}

func source(from config.Sources, key string) string {
	if s := from[key]; s != "" {
		return "from " + s
	}
	return "default"
}

func plain(v reflect.Value) any {
	if s, ok := v.Interface().(fmt.Stringer); ok {
		return s.String()
	}
	return v.Interface()
}

// literal returns a value in TOML, on one line.
func literal(v reflect.Value) string {
	if text, ok := plain(v).(string); ok {
		return strconv.Quote(text)
	}
	var parts []string
	switch v.Kind() {
	case reflect.String:
		return strconv.Quote(v.String())
	case reflect.Pointer:
		return literal(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			parts = append(parts, literal(v.Index(i)))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case reflect.Map:
		for _, k := range v.MapKeys() {
			parts = append(parts, strconv.Quote(k.String())+" = "+literal(v.MapIndex(k)))
		}
		slices.Sort(parts)
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Field(i).IsZero() {
				parts = append(parts, v.Type().Field(i).Tag.Get("toml")+" = "+literal(v.Field(i)))
			}
		}
	default:
		return fmt.Sprint(v.Interface())
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

type configCheck struct {
	File string `arg:"" optional:"" help:"File to check (default: the file that 'engi serve' would use)." placeholder:"FILE"`
}

func (configCheck) Help() string {
	return example("engi config check", "engi config check ./config.toml")
}

func (c configCheck) Run(g *globals) error {
	if c.File != "" {
		g.Config = c.File
	}
	conf, from, err := g.config()
	if err != nil {
		return err
	}
	if err := conf.Sessions.CheckEnvironment(os.LookupEnv); err != nil {
		return err
	}
	if err := conf.Events.CheckEnvironment(os.LookupEnv); err != nil {
		return err
	}
	notes := conf.Sessions.Notes()
	if g.JSON {
		return g.printJSON(map[string]any{"ok": true, "sources": from, "notes": notes})
	}
	for _, note := range notes {
		g.note("%s", note)
	}
	fmt.Fprintf(g.out, "the configuration is good; %d keys differ from their defaults\n", len(from))
	return nil
}
