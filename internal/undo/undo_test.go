package undo

import "testing"

func TestStack(t *testing.T) {
	var s Stack
	said := ""
	s.Add(func() { said += "a" })
	s.Add(func() { said += "b" })
	s.Run()
	s.Run()
	if said != "ba" {
		t.Errorf("ran %q", said)
	}
	s.Add(func() { said += "c" })
	s.Keep()
	if s.Run(); said != "ba" {
		t.Errorf("ran %q after Keep", said)
	}
}
