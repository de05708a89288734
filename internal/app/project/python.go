package project

import (
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/engi-dev/engi/internal/clip"
)

var (
	pyImport  = regexp.MustCompile(`^\s*import\s+([\w. \t,]+)`)
	pyFrom    = regexp.MustCompile(`^\s*from\s+(\.*[\w.]*)\s+import\b`)
	pyAs      = regexp.MustCompile(`\s+as\s+\w+`)
	pyRoute   = regexp.MustCompile(`^\s*@\w+\.(get|post|put|patch|delete|head|options|websocket)\(\s*[rf]?["']([^"'\n]{1,200})["']`)
	pyNames   = regexp.MustCompile(`^\s*(?:async\s+)?(?:def|class)\s+(\w+)`)
	pyPackage = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,98}[a-z0-9])?$`) // package names that may be derived from module names
	pyRequire = regexp.MustCompile(`^\s*"?([A-Za-z0-9][A-Za-z0-9._-]*)`)
)

// distributions maps modules to the names of their PyPI packages if these differ
// beyond case and underscores. The source is the page of each package on PyPI, which says what
// to install and what to import.
var distributions = map[string]string{
	"PIL": "pillow", "cv2": "opencv-python-headless", "sklearn": "scikit-learn", "skimage": "scikit-image", "yaml": "pyyaml",
	"bs4": "beautifulsoup4", "dotenv": "python-dotenv", "jwt": "pyjwt", "jose": "python-jose", "multipart": "python-multipart",
	"dateutil": "python-dateutil", "psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient",
	"Crypto": "pycryptodome", "OpenSSL": "pyopenssl", "magic": "python-magic", "docx": "python-docx", "pptx": "python-pptx",
	"fitz": "pymupdf", "serial": "pyserial", "websocket": "websocket-client", "attr": "attrs", "git": "gitpython",
	"slugify": "python-slugify", "telegram": "python-telegram-bot", "discord": "discord.py", "nacl": "pynacl", "zmq": "pyzmq",
	"ruamel": "ruamel.yaml", "pkg_resources": "setuptools", "socketio": "python-socketio", "engineio": "python-engineio",
	"github": "pygithub", "usb": "pyusb",
	"OpenGL": "pyopengl", "wx": "wxpython", "Xlib": "python-xlib", "ldap": "python-ldap", "memcache": "python-memcached",
	"mysql": "mysql-connector-python", "snappy": "python-snappy",
}

// standard lists the modules of Python's standard library, including those of past versions.
var standard = words(`abc aifc antigravity argparse array ast asynchat asyncio asyncore atexit audioop base64 bdb binascii bisect
	builtins bz2 cProfile calendar cgi cgitb chunk cmath cmd code codecs codeop collections colorsys compileall compression
	concurrent configparser contextlib contextvars copy copyreg crypt csv ctypes curses dataclasses datetime dbm decimal difflib
	dis distutils doctest email encodings ensurepip enum errno faulthandler fcntl filecmp fileinput fnmatch fractions ftplib
	functools gc genericpath getopt getpass gettext glob graphlib grp gzip hashlib heapq hmac html http idlelib imaplib imghdr
	imp importlib inspect io ipaddress itertools json keyword lib2to3 linecache locale logging lzma mailbox mailcap marshal math
	mimetypes mmap modulefinder msilib msvcrt multiprocessing netrc nis nntplib nt ntpath nturl2path numbers opcode operator
	optparse os ossaudiodev pathlib pdb pickle pickletools pipes pkgutil platform plistlib poplib posix posixpath pprint profile
	pstats pty pwd py_compile pyclbr pydoc pydoc_data pyexpat queue quopri random re readline reprlib resource rlcompleter runpy
	sched secrets select selectors shelve shlex shutil signal site smtpd smtplib sndhdr socket socketserver spwd sqlite3
	sre_compile sre_constants sre_parse ssl stat statistics string stringprep struct subprocess sunau symtable sys sysconfig
	syslog tabnanny tarfile telnetlib tempfile termios textwrap this threading time timeit tkinter token tokenize tomllib trace
	traceback tracemalloc tty turtle turtledemo types typing unicodedata unittest urllib uu uuid venv warnings wave weakref
	webbrowser winreg winsound wsgiref xdrlib xml xmlrpc zipapp zipfile zipimport zlib zoneinfo __future__ __main__ _thread`)

// readPython finds the import statements and routes in the lines of a file. It handles
// multi-line strings, and no other part of the grammar.
func readPython(src string) (r reading) {
	quote := "" // quote of the open multi-line string
	var route *Route
	n := 0
	for l := range strings.SplitSeq(src, "\n") {
		n++
		if len(l) > 2000 {
			continue
		}
		open := quote
		quote = openQuote(l, quote)
		if open != "" {
			continue
		}
		add := func(module string) {
			top, _, _ := strings.Cut(module, ".")
			im := Import{Path: module, Line: n, Type: "python"}
			if top != "" && !standard[top] {
				im.Package = distributions[top]
				if name := strings.ToLower(strings.ReplaceAll(top, "_", "-")); im.Package == "" && pyPackage.MatchString(name) {
					im.Package = name
				}
			}
			if len(r.imports) < maxImports {
				r.imports = append(r.imports, im)
			}
		}
		if m := pyFrom.FindStringSubmatch(l); m != nil {
			add(m[1])
		} else if m := pyImport.FindStringSubmatch(l); m != nil {
			for part := range strings.SplitSeq(pyAs.ReplaceAllString(m[1], ""), ",") {
				if part = strings.TrimSpace(part); part != "" && !strings.Contains(part, " ") {
					add(part)
				}
			}
		}
		if m := pyRoute.FindStringSubmatch(l); m != nil && len(r.facts.routes) < maxFacts {
			r.facts.routes = append(r.facts.routes, Route{Path: m[2], Method: strings.ToUpper(m[1]), Line: n})
			route = &r.facts.routes[len(r.facts.routes)-1]
		} else if m := pyNames.FindStringSubmatch(l); m != nil {
			if route != nil {
				route.Component, route = m[1], nil
			}
			if l[0] != ' ' && l[0] != '\t' && len(r.facts.exports) < maxFacts {
				r.facts.exports = append(r.facts.exports, m[1])
			}
		}
	}
	return r
}

// openQuote returns the quote of the multi-line string that is open after a line.
func openQuote(l, quote string) string {
	for i := 0; i < len(l); i++ {
		switch {
		case quote == "" && l[i] == '#':
			return ""
		case l[i] == '\\':
			i++
		case quote == "" && (strings.HasPrefix(l[i:], `"""`) || strings.HasPrefix(l[i:], "'''")):
			quote = l[i : i+3]
			i += 2
		case quote == "" && (l[i] == '"' || l[i] == '\''):
			end := strings.IndexByte(l[i+1:], l[i])
			if end < 0 {
				return ""
			}
			i += end + 1
		case quote != "" && strings.HasPrefix(l[i:], quote):
			quote = ""
			i += 2
		}
	}
	return quote
}

// MissingPython returns the packages of PyPI that the Python files of an app import and
// that neither requirements.txt nor pyproject.toml lists, and the imports of modules of
// the app that do not exist.
func MissingPython(files map[string]string) (packages []string, unresolved []Problem) {
	have := map[string]bool{}
	for _, name := range []string{"requirements.txt", "pyproject.toml"} {
		for l := range strings.SplitSeq(files[name], "\n") {
			if m := pyRequire.FindStringSubmatch(l); m != nil {
				have[pipName(m[1])] = true
			}
		}
	}
	if have["fastapi"] && strings.Contains(files["requirements.txt"], "fastapi[") {
		for p := range words("uvicorn python-multipart jinja2 email-validator httpx") {
			have[p] = true
		}
	}
	// These packages bring others along.
	if have["fastapi"] {
		have["starlette"], have["pydantic"] = true, true
	}
	if have["sqlmodel"] {
		have["sqlalchemy"], have["pydantic"] = true, true
	}
	dirs := map[string]bool{}
	for p := range files {
		if extension(p) == "py" {
			for d := path.Dir(p); d != "."; d = path.Dir(d) {
				dirs[d] = true
			}
		}
	}
	local := func(from, module string) bool {
		file := strings.ReplaceAll(module, ".", "/")
		for _, root := range []string{path.Dir(from), ".", "src", "app", "backend"} {
			p := path.Join(root, file)
			if _, ok := files[p+".py"]; ok || dirs[p] {
				return true
			}
			if top, _, _ := strings.Cut(file, "/"); dirs[path.Join(root, top)] {
				return true
			} else if _, ok := files[path.Join(root, top)+".py"]; ok {
				return true
			}
		}
		return false
	}
	want := map[string]bool{}
	need := func(p string) {
		if !have[pipName(p)] {
			want[p] = true
		}
	}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		if extension(p) != "py" {
			continue
		}
		for _, im := range read(p, files[p]).imports {
			if dots := len(im.Path) - len(strings.TrimLeft(im.Path, ".")); dots > 0 {
				dir := path.Dir(p)
				for range dots - 1 {
					dir = path.Dir(dir)
				}
				target := path.Join(dir, strings.ReplaceAll(im.Path[dots:], ".", "/"))
				if _, ok := files[target+".py"]; !ok && !dirs[target] && target != "." && im.Path[dots:] != "" && len(unresolved) < maxProblems {
					unresolved = append(unresolved, Problem{File: p, Line: im.Line, Text: clip.Text(im.Path, 200) + " is imported, and there is no " + clip.Text(target, 200) + ".py"})
				}
				continue
			}
			if im.Package != "" && !local(p, im.Path) {
				need(im.Package)
			}
		}
		// FastAPI needs these only at run time.
		if have["fastapi"] || want["fastapi"] {
			if strings.Contains(files[p], "UploadFile") || strings.Contains(files[p], "Form(") || strings.Contains(files[p], "OAuth2PasswordRequestForm") {
				need("python-multipart")
			}
			if strings.Contains(files[p], "EmailStr") {
				need("email-validator")
			}
		}
	}
	return slices.Sorted(maps.Keys(want)), unresolved
}

// pipName returns the normalized name of a PyPI package.
func pipName(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(s))
}
