package config

import (
	"errors"
	"testing"

	"github.com/engi-dev/engi/internal/engi"
)

func TestFunctions(t *testing.T) {
	program := Program{Language: "python", Code: "print(1)"}
	for name, f := range map[string]Function{
		"no name":       {Event: "e", Run: program},
		"no start":      {Name: "f", Run: program},
		"no work":       {Name: "f", Event: "e"},
		"two works":     {Name: "f", Event: "e", Agent: "a", Run: program},
		"no language":   {Name: "f", Event: "e", Run: Program{Code: "x"}},
		"no code":       {Name: "f", Event: "e", Run: Program{Language: "python"}},
		"code twice":    {Name: "f", Event: "e", Run: Program{Language: "python", Code: "x", File: "/x"}},
		"relative file": {Name: "f", Event: "e", Run: Program{Language: "python", File: "x"}},
		"no such agent": {Name: "f", Event: "e", Agent: "codr"},
		"negative":      {Name: "f", Event: "e", Run: program, Retries: -1},
	} {
		c := Defaults()
		c.Functions = []Function{f}
		if err := c.Validate(); !engi.Is(err, engi.Invalid) {
			t.Errorf("%s: %v, want Invalid", name, err)
		}
	}
	c := Defaults()
	c.Functions = []Function{{Name: "f", Event: "e", Run: Program{Language: "bash", File: "/x"}}}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	all, err := c.DeclaredFunctions(func(path string) ([]byte, error) { return []byte("code of " + path), nil })
	if err != nil || len(all) != 1 || string(all[0].Program.Files[0].Data) != "code of /x" || all[0].Program.Files[0].Path != "main.sh" {
		t.Errorf("%+v %v", all, err)
	}
	if _, err := c.DeclaredFunctions(func(string) ([]byte, error) { return nil, errors.New("gone") }); !engi.Is(err, engi.Invalid) {
		t.Errorf("a file that is gone: %v", err)
	}
	c.Functions = append(c.Functions, Function{Name: "g", Event: "e", Agent: "coder"})
	if err := c.Validate(); err != nil {
		t.Errorf("a built-in agent: %v", err)
	}
	c.Functions = append(c.Functions, c.Functions[0])
	if err := c.Validate(); err == nil {
		t.Error("two functions of one name are taken")
	}
}
