package disk

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/sandbox/disk/tree"
)

// defaultPath is the PATH of templates that set none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// maxAccounts bounds the size of files in /etc that are read.
const maxAccounts = 1 << 20

// An account is a line of /etc/passwd.
type account struct {
	name        string
	uid, gid    int
	home, shell string
}

// accounts reads /etc/passwd. It skips malformed lines and returns no accounts if the
// file is missing.
func accounts(t *tree.Tree) ([]account, error) {
	data, err := t.ReadFile("/etc/passwd", maxAccounts)
	if err != nil && !engi.Is(err, engi.NotFound) {
		return nil, err
	}
	var all []account
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimRight(line, "\n"), ":")
		if len(f) < 7 {
			continue
		}
		uid, err1 := strconv.Atoi(f[2])
		gid, err2 := strconv.Atoi(f[3])
		if err1 != nil || err2 != nil || uid < 0 || gid < 0 {
			continue
		}
		all = append(all, account{name: f[0], uid: uid, gid: gid, home: f[5], shell: f[6]})
	}
	return all, nil
}

// ensureUser returns the account with a name. It creates a missing account.
func ensureUser(t *tree.Tree, name string) (account, error) {
	all, err := accounts(t)
	if err != nil {
		return account{}, err
	}
	if i := slices.IndexFunc(all, func(a account) bool { return a.name == name }); i >= 0 {
		return all[i], nil
	}
	if !slices.ContainsFunc(all, func(a account) bool { return a.uid == 0 }) {
		if err := appendLine(t, "/etc/passwd", "root:x:0:0:root:/root:/bin/sh", 0o644); err != nil {
			return account{}, err
		}
		if err := appendLine(t, "/etc/group", "root:x:0:", 0o644); err != nil {
			return account{}, err
		}
	}
	if name == "root" {
		return account{name: "root", home: "/root", shell: "/bin/sh"}, nil
	}
	id := 1000
	for slices.ContainsFunc(all, func(a account) bool { return a.uid == id || a.gid == id }) {
		id++
	}
	shell := "/bin/sh"
	if _, err := t.Stat("/bin/bash"); err == nil {
		shell = "/bin/bash"
	}
	a := account{name: name, uid: id, gid: id, home: "/home/" + name, shell: shell}
	for _, l := range []struct {
		file, line string
		mode       uint32
	}{
		{"/etc/passwd", fmt.Sprintf("%s:x:%d:%d::%s:%s", a.name, a.uid, a.gid, a.home, a.shell), 0o644},
		{"/etc/group", fmt.Sprintf("%s:x:%d:", a.name, a.gid), 0o644},
		{"/etc/shadow", fmt.Sprintf("%s:!:19000:0:99999:7:::", a.name), 0o640},
	} {
		if err := appendLine(t, l.file, l.line, l.mode); err != nil {
			return a, err
		}
	}
	owner := tree.Owner{UID: a.uid, GID: a.gid}
	if err := t.MkdirAll(a.home, 0o755, owner); err != nil {
		return a, err
	}
	return a, copySkeleton(t, a.home, owner)
}

// copySkeleton copies the files of /etc/skel to a new home.
func copySkeleton(t *tree.Tree, home string, o tree.Owner) error {
	names, err := t.ReadDir("/etc/skel")
	if err != nil {
		return nil // there is no /etc/skel
	}
	for _, name := range names {
		data, err := t.ReadFile(path.Join("/etc/skel", name), maxAccounts)
		if err != nil {
			continue // not a regular file
		}
		if err := t.WriteFile(path.Join(home, name), data, 0o644, o); err != nil {
			return err
		}
	}
	return nil
}

// appendLine adds a line to a file of /etc, keeping owner and mode.
func appendLine(t *tree.Tree, name, line string, mode uint32) error {
	data, err := t.ReadFile(name, maxAccounts)
	owner := tree.Owner{}
	switch {
	case err == nil:
		st, err := t.Stat(name)
		if err != nil {
			return err
		}
		mode, owner = st.Mode&0o777, tree.Owner{UID: int(st.Uid), GID: int(st.Gid)}
	case !engi.Is(err, engi.NotFound):
		return err
	}
	if len(data) > 0 && data[len(data)-1] != '\n' {
		data = append(data, '\n')
	}
	return t.WriteFile(name, append(data, line+"\n"...), fileMode(mode), owner)
}

// prepare creates the users, directories and files that the definition and sandboxes
// need.
func (j *job) prepare(tmpl *engi.Template) error {
	for _, d := range []struct {
		path string
		mode uint32
	}{
		{"/proc", 0o555}, {"/sys", 0o555}, {"/dev", 0o755}, {"/run", 0o755}, {"/etc", 0o755}, {"/root", 0o700},
		{"/.engi", 0o755}, // mount point of the guest's channel
	} {
		if err := j.tree.MkdirAll(d.path, fileMode(d.mode), tree.Owner{}); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/tmp", "/var/tmp"} {
		if err := j.tree.MkdirAll(dir, fileMode(0o1777), tree.Owner{}); err != nil {
			return err
		}
		if err := j.tree.Chmod(dir, fileMode(0o1777)); err != nil {
			return err
		}
	}
	for _, f := range []struct{ path, text string }{
		{"/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"},
		{"/etc/resolv.conf", ""}, // a sandbox with network gets its own file mounted over it
		{"/etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n"},
	} {
		if st, err := j.tree.Lstat(f.path); err == nil && (f.path != "/etc/resolv.conf" || st.Mode&unix.S_IFMT == unix.S_IFREG) {
			continue
		}
		if err := j.tree.WriteFile(f.path, []byte(f.text), 0o644, tree.Owner{}); err != nil {
			return err
		}
	}
	if u := j.def.User; u != "" {
		if _, err := ensureUser(j.tree, u); err != nil {
			return err
		}
	}
	if err := j.account(tmpl); err != nil {
		return err
	}
	return j.writeFiles()
}

// account fills in the user, environment, working directory and shell of programs.
// The working directory is created for the user if it is missing.
func (j *job) account(tmpl *engi.Template) error {
	who := j.def.User
	if who == "" {
		who, _, _ = strings.Cut(j.image.user, ":")
	}
	a, err := j.resolveUser(who)
	if err != nil {
		return err
	}
	tmpl.User, tmpl.UID, tmpl.GID, tmpl.Home = a.name, a.uid, a.gid, a.home
	if a.uid == 0 {
		tmpl.User = ""
	}
	if !path.IsAbs(tmpl.Home) {
		tmpl.Home = "/"
	}
	tmpl.Env = map[string]string{"PATH": defaultPath, "LANG": "C.UTF-8"}
	for k, v := range j.image.env {
		tmpl.Env[k] = v
	}
	for k, v := range j.def.Env {
		tmpl.Env[k] = v
	}
	if err := j.def.ExpandRemote(tmpl.Env); err != nil {
		return err
	}
	if tmpl.Ports = j.def.Ports; tmpl.Ports == nil {
		tmpl.Ports = j.image.ports
	}

	tmpl.WorkDir = j.def.WorkDir
	if wd := j.image.workDir; tmpl.WorkDir == "" && path.IsAbs(wd) && path.Clean(wd) != "/" {
		tmpl.WorkDir = path.Clean(wd)
	}
	if tmpl.WorkDir == "" {
		tmpl.WorkDir = "/workspace"
	}
	if _, err := j.tree.Stat(tmpl.WorkDir); err != nil {
		if err := j.tree.MkdirAll(tmpl.WorkDir, 0o755, tree.Owner{UID: a.uid, GID: a.gid}); err != nil {
			return err
		}
	}

	shells := []string{j.def.Shell}
	if j.def.Shell == "" {
		shells = []string{a.shell, "/bin/bash", "/bin/sh", "/usr/bin/bash", "/usr/bin/sh"}
	}
	for _, s := range shells {
		if path.IsAbs(s) && j.isProgram(s) {
			tmpl.Shell = s
			return nil
		}
	}
	if j.def.Shell != "" && !j.moreSteps() {
		return invalid("the template has no shell %s", j.def.Shell).WithRemedy("install it with 'packages', or set another 'default_shell'")
	}
	tmpl.Shell = "/bin/sh" // fallback if the image has none of these shells
	return nil
}

// moreSteps reports whether later steps may create users or programs that are missing now.
func (j *job) moreSteps() bool {
	return !j.finished && (len(j.def.Commands) > 0 || len(j.def.Packages) > 0 && !j.src.debian)
}

// resolveUser finds an account by name or number; empty means root.
func (j *job) resolveUser(who string) (account, error) {
	if who == "" {
		who = "root"
	}
	all, err := accounts(j.tree)
	if err != nil {
		return account{}, err
	}
	uid, numErr := strconv.Atoi(who)
	for _, a := range all {
		if a.name == who || numErr == nil && a.uid == uid {
			return a, nil
		}
	}
	switch {
	case who == "root" || who == "0":
		return account{name: "root", home: "/root", shell: "/bin/sh"}, nil
	case numErr == nil && uid > 0 && uid < 1<<31:
		// The user of the image is a number without an account.
		a := account{name: fmt.Sprintf("user%d", uid), uid: uid, gid: uid, home: "/", shell: "/bin/sh"}
		return a, appendLine(j.tree, "/etc/passwd", fmt.Sprintf("%s:x:%d:%d::/:/bin/sh", a.name, a.uid, a.gid), 0o644)
	}
	return account{}, invalid("the image runs as the user %q, which is not in its /etc/passwd", who).WithRemedy("set 'user' in the definition; the user is created if missing")
}

// writeFiles writes the definition's files to the root.
func (j *job) writeFiles() error {
	for _, f := range j.def.Files {
		var o tree.Owner
		if f.Owner != "" {
			a, err := j.resolveUser(f.Owner)
			if err != nil {
				return err
			}
			o = tree.Owner{UID: a.uid, GID: a.gid}
		}
		if f.Source == "" {
			if err := j.tree.WriteFile(f.Path, []byte(f.Content), f.Mode, o); err != nil {
				return err
			}
			continue
		}
		in, err := j.t.openSource(f.Source)
		if err != nil {
			return err
		}
		sum := sha256.New()
		_, err = j.tree.Create(f.Path, io.TeeReader(in, sum), tree.File{Mode: f.Mode, Owner: o})
		in.Close()
		if err != nil {
			return err
		}
		if !slices.Contains(j.inputs, fileInput(f, hex.EncodeToString(sum.Sum(nil)))) {
			return engi.Errorf(engi.Conflict, "%s changed while the template was built", f.Source).WithRemedy("build again once it is complete")
		}
	}
	return nil
}

// interpreters lists the programs for each language, in order of preference, and
// whether warm pools may start them before the code is known.
var interpreters = map[engi.Language]struct {
	programs []string
	warm     bool
}{
	engi.Python:     {[]string{"python3", "python"}, true},
	engi.JavaScript: {[]string{"node"}, true},
	engi.TypeScript: {[]string{"deno"}, true},
	engi.Go:         {[]string{"go"}, false}, // go compiles the program first
	engi.Bash:       {[]string{"bash"}, true},
}

// findLanguages finds interpreters in the root.
func (j *job) findLanguages(tmpl *engi.Template) error {
	tmpl.Languages = map[engi.Language]engi.Interpreter{}
	for lang, known := range interpreters {
		at, wanted := j.def.Languages[lang]
		if at == "" {
			at = j.findProgram(tmpl.Env["PATH"], known.programs)
		} else if !j.isProgram(at) {
			return invalid("the template has no program %s for %s", at, lang)
		}
		if at == "" {
			if wanted {
				return invalid("the template has no %s for %s", known.programs[0], lang).WithRemedy("install it with 'packages' or 'commands', or remove %s from 'languages'", lang)
			}
			continue
		}
		warm := known.warm
		if j.def.Warm != nil {
			warm = warm && slices.Contains(j.def.Warm, lang)
		}
		tmpl.Languages[lang] = engi.Interpreter{Path: at, Warm: warm}
	}
	for _, lang := range j.def.Warm {
		if _, ok := tmpl.Languages[lang]; !ok {
			return invalid("'warm' names %s, which the template cannot run", lang)
		}
	}
	return nil
}

func (j *job) findProgram(search string, programs []string) string {
	for _, p := range programs {
		for dir := range strings.SplitSeq(search, ":") {
			if at := path.Join(dir, p); path.IsAbs(at) && j.isProgram(at) {
				return at
			}
		}
	}
	return ""
}

// isProgram reports whether a path leads to an executable, in the root or in a directory
// mounted over it.
func (j *job) isProgram(at string) bool {
	st, err := j.stat(at)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0
}
