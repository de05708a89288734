package server

import (
	"crypto/rand"
	"fmt"
	"maps"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/engi-dev/engi/internal/engi"
)

// maxName is the maximum length, in bytes, of a user or a database name that all servers allow.
const maxName = 32

// A reader takes known variables from an environment.
type reader struct {
	env  map[string]string
	errs []string
}

func read(env map[string]string) *reader { return &reader{env: maps.Clone(env)} }

// take removes the first of some variables that is set, and returns its value, or def.
func (r *reader) take(def string, names ...string) string {
	value, found := def, false
	for _, n := range names {
		if v, ok := r.env[n]; ok {
			if delete(r.env, n); !found && v != "" {
				value, found = v, true
			}
		}
	}
	return value
}

// name is take for names of users and databases.
func (r *reader) name(def string, names ...string) string {
	v := r.take(def, names...)
	if len(v) > maxName || strings.Trim(v, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != "" {
		r.errs = append(r.errs, fmt.Sprintf("%s is %.70q, which has other characters than letters, digits, '_' and '-', or more than %d", names[0], v, maxName))
	}
	return v
}

// password is take for passwords, and generates one if none is set. A password is never part of
// an error.
func (r *reader) password(names ...string) string {
	v := r.take("", names...)
	if v == "" {
		return rand.Text()
	}
	for _, c := range v {
		if len(v) > 128 || c < ' ' || c > '~' {
			r.errs = append(r.errs, names[0]+" has other characters than those of ASCII that can be printed, or more than 128")
			break
		}
	}
	return v
}

// done returns the remaining environment, or Invalid.
func (r *reader) done() (map[string]string, error) {
	if len(r.errs) > 0 {
		return nil, engi.Errorf(engi.Invalid, "%s", strings.Join(r.errs, "; ")).WithRemedy("leave a variable out to have engi generate its value")
	}
	return r.env, nil
}

func postgresAccess(env map[string]string) (Access, map[string]string, error) {
	r := read(env)
	a := Access{User: r.name("app", "POSTGRES_USER"), Password: r.password("POSTGRES_PASSWORD")}
	a.Database = r.name(a.User, "POSTGRES_DB")
	rest, err := r.done()
	return a, rest, err
}

// postgresSettings returns the statements that initialize a new cluster, one per line.
func postgresSettings(a Access, _ map[string]string) (string, error) {
	user, db := `"`+a.User+`"`, `"`+a.Database+`"`
	var b strings.Builder
	if a.User != "postgres" {
		fmt.Fprintf(&b, "CREATE ROLE %s LOGIN SUPERUSER\n", user)
	}
	fmt.Fprintf(&b, "ALTER ROLE %s PASSWORD '%s'\n", user, strings.ReplaceAll(a.Password, "'", "''"))
	switch a.Database {
	case "postgres", "template0", "template1":
	default:
		fmt.Fprintf(&b, "CREATE DATABASE %s OWNER %s\n", db, user)
	}
	return b.String(), nil
}

func mysqlAccess(env map[string]string) (Access, map[string]string, error) {
	r := read(env)
	a := Access{User: r.name("app", "MYSQL_USER", "MARIADB_USER")}
	root := r.take("", "MYSQL_ROOT_PASSWORD", "MARIADB_ROOT_PASSWORD")
	if a.User == "root" && root != "" {
		r.env["MYSQL_PASSWORD"] = root
	}
	a.Password = r.password("MYSQL_PASSWORD", "MARIADB_PASSWORD")
	a.Database = r.name("app", "MYSQL_DATABASE", "MARIADB_DATABASE")
	rest, err := r.done()
	return a, rest, err
}

// mysqlSettings returns the statements that initialize new databases.
func mysqlSettings(a Access, _ map[string]string) (string, error) {
	quote := func(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + "'" }
	return "FLUSH PRIVILEGES;\n" +
		"CREATE DATABASE IF NOT EXISTS `" + a.Database + "` CHARACTER SET utf8mb4;\n" +
		"CREATE USER " + quote(a.User) + "@'%' IDENTIFIED BY " + quote(a.Password) + ";\n" +
		"GRANT ALL ON *.* TO " + quote(a.User) + "@'%' WITH GRANT OPTION;\n", nil
}

func mongoAccess(env map[string]string) (Access, map[string]string, error) {
	r := read(env)
	a := Access{User: r.name("app", "MONGO_INITDB_ROOT_USERNAME"), Password: r.password("MONGO_INITDB_ROOT_PASSWORD")}
	a.Database = r.name("app", "MONGO_INITDB_DATABASE")
	rest, err := r.done()
	return a, rest, err
}

// mongoSettings returns variables of the server for a shell. They have no effect if the user
// exists already.
func mongoSettings(a Access, _ map[string]string) (string, error) {
	return "export FERRETDB_SETUP_USERNAME=" + a.User + " FERRETDB_SETUP_DATABASE=" + a.Database +
		" FERRETDB_SETUP_PASSWORD='" + strings.ReplaceAll(a.Password, "'", `'\''`) + "'\n", nil
}

func redisAccess(env map[string]string) (Access, map[string]string, error) {
	r := read(env)
	a := Access{User: "default", Password: r.password("REDIS_PASSWORD"), Database: "0"}
	rest, err := r.done()
	return a, rest, err
}

// redisSettings returns the server's configuration. A write is on disk before it is answered.
func redisSettings(a Access, _ map[string]string) (string, error) {
	return strings.Join([]string{
		"bind * -::*", "port 6379", "protected-mode no", "daemonize no", "dir " + DataDir + "/server",
		"requirepass " + strconv.QuoteToASCII(a.Password), "appendonly yes", "appendfsync always", `save ""`, "",
	}, "\n"), nil
}

func nginxAccess(env map[string]string) (Access, map[string]string, error) {
	return Access{}, env, nil
}

// nginxSettings returns the server's configuration without the resolver, which the
// script adds.
func nginxSettings(_ Access, env map[string]string) (string, error) {
	root := path.Clean("/" + env["ROOT"])
	if strings.Trim(root, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./") != "" {
		return "", engi.Errorf(engi.Invalid, "ROOT is %.70q, which has other characters than letters, digits and _-./", root).WithRemedy("name a directory below %s", DataDir)
	}
	rest := "index index.html;\ntry_files $uri $uri/ =404;"
	if up := env["UPSTREAM"]; up != "" {
		u, err := url.Parse(up)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" ||
			strings.Trim(u.Host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.:[]") != "" {
			return "", engi.Errorf(engi.Invalid, "UPSTREAM is %.200q, which is not http://HOST:PORT", up).WithRemedy("name a server of the workspace, like http://workspace.workspace.internal:8000")
		}
		// nginx resolves a variable for each request, so that it can start before the
		// server to which it passes requests.
		rest = "set $upstream " + u.Scheme + "://" + u.Host + ";\nproxy_pass $upstream;\nproxy_http_version 1.1;\nproxy_set_header Host $http_host;\n" +
			"proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\nproxy_set_header X-Forwarded-Proto $scheme;\n" +
			"proxy_set_header Upgrade $http_upgrade;\nproxy_set_header Connection $upgrade;\nproxy_buffering off;\nproxy_read_timeout 1h;\nclient_max_body_size 0;"
	}
	return `user www-data;
worker_processes 1;
pid /run/service/nginx.pid;
error_log stderr;
events { worker_connections 1024; }
http {
include /etc/nginx/mime.types;
include /run/service/resolver.conf;
default_type application/octet-stream;
access_log /dev/stdout;
sendfile on;
server_tokens on;
map $http_upgrade $upgrade { default upgrade; '' close; }
server {
listen 80;
server_name ` + greetHost + `;
access_log off;
return 204;
}
server {
listen 80 default_server;
root ` + path.Join(DataDir, root) + `;
location / {
` + rest + `
}
}
}
`, nil
}

// link returns the URL that clients of a database use.
func link(scheme, host string, port int, a Access) string {
	u := url.URL{Scheme: scheme, Host: host + ":" + strconv.Itoa(port), User: url.UserPassword(a.User, a.Password), Path: "/" + a.Database}
	return u.String()
}
