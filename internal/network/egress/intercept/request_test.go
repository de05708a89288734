package intercept_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/network/egress/intercept"
)

// judgedPolicy allows messages without tools that the provider runs itself, and reads
// of all paths except those for administrators.
func judgedPolicy() engi.NetworkPolicy {
	return engi.NetworkPolicy{
		Mode: engi.NetworkRestricted, Allow: []string{host},
		Grants: []engi.Grant{{Secret: "TOKEN", Hosts: []string{host}}},
		Requests: []engi.RequestRule{
			{Host: host, Path: "/v1/admin/**", Action: engi.RequestDeny, Reason: "for people only"},
			{Host: host, Methods: []string{"POST"}, Path: "/v1/messages", MaxBody: 64 << 10, Body: []string{
				"mcp_servers absent", `tools[*].type in ["custom"]`, `**.source.type not_in ["url", "file"]`, `model in ["small-*"]`, "max_tokens max 4096",
			}},
			{Host: host, Methods: []string{"GET"}, Path: "/v1/**"},
		},
	}
}

// A bypass is a request with a forbidden effect, at least with some
// servers, which contains the word evil. Its control is allowed and contains fine.
type bypass struct{ name, attack, control string }

func get(path string, fields ...string) string { return head("GET", path, fields...) + "\r\n" }

func head(method, path string, fields ...string) string {
	text := method + " " + path + " HTTP/1.1\r\nHost: " + host + "\r\n"
	for _, f := range fields {
		text += f + "\r\n"
	}
	return text
}

func post(body string, fields ...string) string {
	if len(fields) == 0 {
		fields = []string{"Content-Type: application/json"}
	}
	return head("POST", "/v1/messages", append(fields, fmt.Sprintf("Content-Length: %d", len(body)))...) + "\r\n" + body
}

func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, text)
	z.Close()
	return b.String()
}

func utf16(text string) string {
	var b strings.Builder
	for _, c := range text {
		b.WriteString(string([]byte{byte(c), 0}))
	}
	return b.String()
}

func bypasses() []bypass {
	const reads, fine = "/v1/files/fine", `{"model":"small-1","note":"fine"}`
	const tool = `{"type":"web_search_1","name":"evil"}`
	var all []bypass
	for name, path := range map[string]string{
		"as it is": "/v1/admin/evil", "dot segments": "/v1/x/../admin/evil", "one dot": "/v1/./admin/evil", "encoded dots": "/v1/x/%2e%2e/admin/evil",
		"half encoded dots": "/v1/x/.%2E/admin/evil", "dots encoded twice": "/v1/x/%252e%252e/admin/evil", "encoded slashes": "/v1/x%2f..%2fadmin%2fevil",
		"slash encoded twice": "/v1/admin%252fevil", "one encoded slash": "/v1/admin%2Fevil", "encoded letters": "/v1/%61dmin/evil", "all encoded": "/v1/%61%64%6d%69%6e/evil",
		"encoded twice": "/v1/%2561dmin/evil", "empty segment": "/v1//admin/evil", "empty first segment": "//v1/admin/evil", "backslashes": `/v1\admin\evil`, "encoded backslash": "/v1/x%5c..%5cadmin/evil",
		"parameter": "/v1/admin;x=1/evil", "parameter behind dots": "/v1/x/..;/admin/evil", "encoded semicolon": "/v1/admin%3bx/evil", "other case": "/v1/ADMIN/evil",
		"NUL": "/v1/admin%00/evil", "tab": "/v1/admin%09/evil", "line feed": "/v1/admin%0a/evil", "space at the end": "/v1/admin%20/evil", "dot at the end": "/v1/admin./evil",
		"overlong dots": "/v1/x/%c0%ae%c0%ae/admin/evil", "overlong slash": "/v1/admin%c0%afevil", "invalid UTF-8": "/v1/%ffadmin/evil", "raw bytes": "/v1/\xe1\xb5\x83dmin/evil", "full width dots": "/v1/%ef%bc%8e%ef%bc%8e/admin/evil",
		"full width letters": "/v1/%ef%bd%81dmin/evil", "superscript": "/v1/%e1%b5%83dmin/evil", "Kelvin": "/v1/admin%e2%84%aa/evil", "slash that divides": "/v1/admin%e2%88%95evil",
		"percent u": "/v1/%u0061dmin/evil", "bad escape": "/v1/%zzadmin/evil", "cut escape": "/v1/admin/evil%2", "fragment": "/v1/x#/../admin/evil", "encoded question mark": "/v1/admin/evil%3fx", "absolute": "https://" + host + "/v1/admin/evil",
		"absolute without a host": "https:///v1/admin/evil", "opaque": "https:v1/admin/evil", "other scheme": "file:///v1/admin/evil", "no slash": "v1/admin/evil", "method in the query": "/v1/evil?_method=DELETE",
		"encoded key": "/v1/evil?%5fMethod=DELETE", "after a semicolon": "/v1/evil?a=1;_method=DELETE", "Google's key": "/v1/evil?$httpMethod=DELETE", "bad query": "/v1/evil?%5=DELETE",
		"above": "/v2/evil", "beside": "/v1evil", "slash at the end of another": "/v1/admin/evil/",
	} {
		control := reads
		if strings.HasPrefix(path, "https://"+host) {
			control = "https://" + host + reads
		} else if strings.Contains(path, "?") {
			control = reads + "?method=DELETE"
		} else if strings.Contains(path, "%") {
			control = "/v1/files/fin%65/b%C3%BCcher/fine"
		}
		all = append(all, bypass{"path: " + name, get(path), get(control)})
	}
	for _, method := range []string{"DELETE", "PUT", "PATCH", "HEAD", "TRACE", "OPTIONS", "get", "Get", "delete", "WEBSOCKET", "PROPFIND"} {
		all = append(all, bypass{"method: " + method, head(method, "/v1/evil", "Content-Length: 0") + "\r\n", get(reads, "Content-Length: 0")})
	}
	all = append(all,
		bypass{"method: POST elsewhere", head("POST", "/v1/evil", "Content-Type: application/json", "Content-Length: 2") + "\r\n{}", post(fine)},
		bypass{"method: CONNECT", "CONNECT " + host + ":443 HTTP/1.1\r\nHost: " + host + ":443\r\n\r\n" + get("/v1/admin/evil"), get(reads)},
		bypass{"method: OPTIONS of all", head("OPTIONS", "*", "X-A: evil") + "\r\n", get(reads, "X-A: a")},
	)
	for _, field := range []string{"X-HTTP-Method-Override: DELETE", "x-http-method: DELETE", "X-Method-Override: DELETE", "X_HTTP_Method_Override: DELETE", "X-Original-URL: /v1/admin",
		"X-Rewrite-URL: /v1/admin", "X-Forwarded-Host: other.example", "X-Forwarded-Uri: /v1/admin", "X-Host: other.example", "Forwarded: host=other.example", "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
		"Upgrade: websocket\r\nConnection: Upgrade", "Upgrade: websocket", "Upgrade: websocket, h2c\r\nConnection: Upgrade", "Transfer_Encoding: chunked", "Connection: content-type",
	} {
		name, _, _ := strings.Cut(field, "\r\n")
		all = append(all, bypass{"header: " + name, get("/v1/evil", field), get(reads, "X-Team: blue", "Connection: keep-alive")})
	}
	deep := strings.Repeat(`{"a":[`, 80)
	for name, body := range map[string]string{
		"as it is": `{"tools":[` + tool + `]}`, "second tool": `{"tools":[{"type":"custom"},` + tool + `]}`, "first of two": `{"tools":[` + tool + `],"tools":[]}`, "second of two": `{"tools":[],"tools":[` + tool + `]}`,
		"two types": `{"tools":[{"type":"custom","type":"web_search_1","name":"evil"}]}`, "other case": `{"Tools":[` + tool + `]}`, "case within": `{"tools":[{"TYPE":"web_search_1","name":"evil"}]}`,
		"escaped key": `{"\u0074ools":[` + tool + `]}`, "escaped value": `{"tools":[{"type":"\u0077eb_search_1","name":"evil"}]}`, "camel case": `{"mcpServers":[{"url":"evil"}]}`, "dashes": `{"MCP-SERVERS":[{"url":"evil"}]}`,
		"servers": `{"mcp_servers":[{"url":"evil"}]}`, "Kelvin": "{\"max_to\u212aens\":99999,\"a\":\"evil\"}", "long s": "{\"mcp_\u017fervers\":[\"evil\"]}", "BOM": "\xef\xbb\xbf" + `{"tools":[` + tool + `]}`,
		"second value": fine + `{"tools":[` + tool + `]}`, "second line": fine + "\n" + `{"tools":[` + tool + `]}`, "comment": `{"a":1,/* "}` + "*/" + `"tools":[` + tool + `]}`, "line comment": "{\"a\":1,//x\n\"tools\":[" + tool + "]}",
		"single quotes": `{'tools':[{'type':'evil'}]}`, "no quotes": `{tools:[{type:"evil"}]}`, "comma at the end": `{"tools":[` + tool + `,],}`, "invalid UTF-8": "{\"to\xffols\":[" + tool + "]}",
		"lone surrogate": `{"tools\ud800":[` + tool + `]}`, "NUL in a key": `{"tools\u0000":[` + tool + `]}`, "raw NUL": "{\"tools\x00\":[" + tool + "]}", "UTF-16": utf16(`{"tools":[`) + "evil", "array": `[{"tools":[` + tool + `]}]`,
		"text": `"{\"tools\":[evil]}"`, "numbered": `{"tools":{"0":` + tool + `}}`, "nested": `{"tools":[[` + tool + `]]}`, "list of types": `{"tools":[{"type":["web_search_1"],"name":"evil"}]}`,
		"object for a type": `{"tools":[{"type":{"evil":1}}]}`, "no list": `{"tools":` + tool + `}`, "URL": `{"messages":[{"content":[{"source":{"type":"url","url":"evil"}}]}]}`, "URL further in": `{"messages":[{"content":[{"content":[{"a":{"source":{"type":"url","url":"evil"}}}]}]}]}`,
		"URL in capitals": `{"x":{"source":{"type":"URL","url":"evil"}}}`, "URL and space": `{"x":{"source":{"type":" url\t","url":"evil"}}}`, "URL and NUL": `{"x":{"source":{"type":"url\u0000","url":"evil"}}}`, "list of sources": `{"x":{"source":[{"type":"url","url":"evil"}]}}`,
		"other model": `{"model":"large-evil"}`, "model and NUL": `{"model":"\u0000small-1","a":"evil"}`, "number as text": `{"max_tokens":"99999","a":"evil"}`, "huge number": `{"max_tokens":1e999,"a":"evil"}`, "exponent": `{"max_tokens":5e3,"a":"evil"}`, "no limit": `{"max_tokens":-1,"a":"evil"}`,
		"not a number": `{"max_tokens":NaN,"a":"evil"}`, "infinite": `{"max_tokens":Infinity,"a":"evil"}`, "hexadecimal": `{"max_tokens":0xFFFFF,"a":"evil"}`, "leading zero": `{"max_tokens":010000,"a":"evil"}`, "list of numbers": `{"max_tokens":[99999],"a":"evil"}`,
		"deep": strings.Repeat("[", 200) + `"evil"` + strings.Repeat("]", 200), "deep objects": deep + `{"source":{"type":"url","url":"evil"}}` + strings.Repeat("]}", 80), "long": `{"a":"` + strings.Repeat("a", 70<<10) + `","b":"evil"}`,
		"not closed": `{"tools":[` + tool, "prefix of a script": ")]}'\n" + `{"tools":[` + tool + `]}`, "empty and then": "  \x0b" + `{"tools":[` + tool + `]}`,
	} {
		control := fine
		switch {
		case strings.HasPrefix(name, "URL"):
			control = `{"x":{"source":{"type":"base64","data":"fine"}}}`
		case strings.Contains(name, "number"):
			control = `{"max_tokens":4096,"a":"fine"}`
		case strings.Contains(body, "tools"):
			control = `{"tools":[{"type":"custom","name":"fine"},{"name":"fine too"}]}`
		}
		all = append(all, bypass{"body: " + name, post(body), post(control)})
	}
	evil := `{"tools":[` + tool + `]}`
	const json = "Content-Type: application/json"
	all = append(all,
		bypass{"body: gzip", post(zipped(evil), json, "Content-Encoding: gzip", "X-A: evil"), post(fine, json, "Content-Encoding: identity")},
		bypass{"body: gzip in silence", post(zipped(evil), json, "X-A: evil"), post(fine)},
		bypass{"body: br", post(evil, json, "Content-Encoding: br"), post(fine)},
		bypass{"body: two encodings", post(evil, json, "Content-Encoding: identity", "Content-Encoding: gzip"), post(fine)},
		bypass{"body: encoding by another name", post(evil, json, "Content_Encoding: gzip"), post(fine)},
		bypass{"body: form", post("tools[0][type]=web_search_1&name=evil", "Content-Type: application/x-www-form-urlencoded"), post(fine)},
		bypass{"body: JSON as form", post(`{"a":"&tools[0][type]=evil&"}`, "Content-Type: application/x-www-form-urlencoded"), post(fine)},
		bypass{"body: multipart", post("--b\r\nContent-Disposition: form-data; name=tools\r\n\r\nevil\r\n--b--\r\n", "Content-Type: multipart/form-data; boundary=b"), post(fine)},
		bypass{"body: boundary for JSON", post(`{"a":"evil"}`, json+"; boundary=b"), post(fine, json+"; charset=UTF-8")},
		bypass{"body: no type", post(`{"a":"evil"}`, "X-A: a"), post(fine)},
		bypass{"body: text", post(`{"a":"evil"}`, "Content-Type: text/plain"), post(fine)},
		bypass{"body: two types", post(`{"a":"evil"}`, json, "Content-Type: application/x-www-form-urlencoded"), post(fine)},
		bypass{"body: list of types", post(`{"a":"evil"}`, json+", application/x-www-form-urlencoded"), post(fine)},
		bypass{"body: UTF-7", post(`{"+AHQ-ools":"evil"}`, json+"; charset=utf-7"), post(fine)},
		bypass{"body: UTF-16 by its type", post(utf16(`{"a":"`)+"evil", json+"; charset=utf-16"), post(fine)},
		bypass{"body: type by another name", post(`{"a":"evil"}`, json, "Content_Type: application/x-www-form-urlencoded"), post(fine)},
		bypass{"body: type taken away", post(`{"a":"evil"}`, json, "Connection: Content-Type"), post(fine, json, "Connection: X-A")},
		bypass{"body: none", head("POST", "/v1/messages", json, "X-A: evil", "Content-Length: 0") + "\r\n", post(fine)},
		bypass{"framing: length and chunks", head("POST", "/v1/messages", json, fmt.Sprint("Content-Length: ", len(fine)), "Transfer-Encoding: chunked") + "\r\n0\r\n\r\n" + get("/v1/admin/evil"), post(fine)},
		bypass{"framing: two lengths", head("POST", "/v1/messages", json, "Content-Length: 2", "Content-Length: 90") + "\r\n{}" + get("/v1/admin/evil"), post(fine)},
		bypass{"framing: signed length", head("POST", "/v1/messages", json, "Content-Length: +2") + "\r\n{}" + get("/v1/admin/evil"), post(fine)},
		bypass{"framing: odd coding", head("POST", "/v1/messages", json, "Transfer-Encoding: xchunked") + "\r\n0\r\n\r\n" + get("/v1/admin/evil"), post(fine)},
		bypass{"framing: folded coding", head("POST", "/v1/messages", json, "Transfer-Encoding:", " chunked") + "\r\n0\r\n\r\n" + get("/v1/admin/evil"), post(fine)},
		bypass{"framing: pipelined", get("/v1/models") + get("/v1/admin/evil"), get("/v1/models") + get(reads)},
		bypass{"framing: length too short", head("POST", "/v1/messages", json, "Content-Length: 2") + "\r\n{}" + head("POST", "/v1/evil", json, "Content-Length: 2") + "\r\n{}", post(fine)},
		bypass{"framing: chunks of one byte", head("POST", "/v1/messages", json, "Transfer-Encoding: chunked") + "\r\n" + chunks(evil, 1), head("POST", "/v1/messages", json, "Transfer-Encoding: chunked") + "\r\n" + chunks(fine, 1)},
		bypass{"framing: last chunk missing", head("POST", "/v1/messages", json, "Transfer-Encoding: chunked") + "\r\n4\r\nevil\r\n", head("POST", "/v1/messages", json, "Transfer-Encoding: chunked") + "\r\n" + chunks(fine, 99)},
		bypass{"framing: chunk extension", head("POST", "/v1/messages", json, "Transfer-Encoding: chunked") + "\r\n2;a=\"\r\n{}\r\n0\r\n\r\n" + get("/v1/admin/evil"), head("POST", "/v1/messages", json, "Transfer-Encoding: chunked") + "\r\n" + chunks(fine, 7)},
		bypass{"framing: trailer", head("POST", "/v1/messages", json, "Transfer-Encoding: chunked", "Trailer: X-HTTP-Method-Override") + "\r\n2\r\n{}\r\n0\r\nX-HTTP-Method-Override: evil\r\n\r\n", post(fine)},
		bypass{"framing: trailer unannounced", head("POST", "/v1/messages", json, "Transfer-Encoding: chunked") + "\r\n2\r\n{}\r\n0\r\nX-HTTP-Method-Override: evil\r\n\r\n", post(fine)},
		bypass{"framing: trailer of a stream", head("GET", "/v1/models", "Transfer-Encoding: chunked", "Trailer: X-Original-Url") + "\r\n2\r\n{}\r\n0\r\nX-Original-Url: evil\r\n\r\n", get(reads)},
		bypass{"framing: expectation", head("POST", "/v1/messages", json, "Expect: 100-continue", fmt.Sprint("Content-Length: ", len(evil))) + "\r\n" + evil, head("POST", "/v1/messages", json, "Expect: 100-continue", fmt.Sprint("Content-Length: ", len(fine))) + "\r\n" + fine},
		bypass{"framing: two hosts", head("GET", "/v1/evil", "Host: other.example") + "\r\n", get(reads)},
		bypass{"framing: bare line feeds", "GET /v1/models HTTP/1.1\nHost: " + host + "\n\nGET /v1/admin/evil HTTP/1.1\nHost: " + host + "\n\n", get(reads)},
	)
	return all
}

func chunks(body string, size int) string {
	var b strings.Builder
	for len(body) > 0 {
		n := min(size, len(body))
		fmt.Fprintf(&b, "%x\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	return b.String() + "0\r\n\r\n"
}

// TestRequestRulesHold tries to bypass request rules. The host, which records
// every byte, must see no forbidden request, and every allowed one.
func TestRequestRulesHold(t *testing.T) {
	f := newFixture(t, judgedPolicy())
	raw := f.rawUpstream()
	send := func(text string) (answers, seen string) {
		before := len(raw.all())
		conn := f.dial("http/1.1")
		conn.SetDeadline(time.Now().Add(time.Minute))
		// The connection ends with the next request, or because of the text sent before.
		go io.WriteString(conn, text+get("/v1/models/last", "Connection: close"))
		got, _ := io.ReadAll(conn)
		return string(got), raw.all()[before:]
	}
	all := bypasses()
	for _, b := range all {
		t.Run(b.name, func(t *testing.T) {
			if answers, seen := send(b.attack); strings.Contains(seen, "evil") || strings.Contains(seen, "override") {
				t.Errorf("the host sees %.300q, the program %.300q", seen, answers)
			}
			answers, seen := send(b.control)
			if !strings.Contains(seen, "fine") || !strings.Contains(seen, "\r\nAuthorization: Bearer "+plain) || strings.Contains(answers, " 403 ") {
				t.Errorf("the control is answered %.300q, and the host sees %.300q", answers, seen)
			}
		})
	}
	t.Logf("%d bypasses tried by HTTP/1.1", len(all))
	f.clean()
}

// TestRequestRulesHoldInHTTP2 sends frames that no client would send.
func TestRequestRulesHoldInHTTP2(t *testing.T) {
	type field = hpack.HeaderField
	request := func(method, path string, more ...field) []field {
		return append([]field{{Name: ":method", Value: method}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: path}, {Name: ":authority", Value: host}}, more...)
	}
	json := field{Name: "content-type", Value: "application/json"}
	for name, c := range map[string]struct {
		fields   []field
		body     string
		trailers []field
		sent     bool
	}{
		"control: reading":           {request("GET", "/v1/models"), "", nil, true},
		"control: a message":         {request("POST", "/v1/messages", json), `{"tools":[{"type":"custom"}]}`, nil, true},
		"control: its length":        {request("POST", "/v1/messages", json, field{Name: "content-length", Value: "2"}), `{}`, nil, true},
		"control: trailers":          {request("POST", "/v1/messages", json), `{}`, []field{{Name: "grpc-a", Value: "evil"}}, true}, // trailers are left out
		"method in lower case":       {request("get", "/v1/evil"), "", nil, false},
		"another method":             {request("DELETE", "/v1/evil"), "", nil, false},
		"second method":              {request("GET", "/v1/evil", field{Name: ":method", Value: "DELETE"}), "", nil, false},
		"method with a space":        {request("GET /v1/models HTTP/1.1\r\nX: ", "/v1/evil"), "", nil, false},
		"dot segments":               {request("GET", "/v1/x/../admin/evil"), "", nil, false},
		"encoded letters":            {request("GET", "/v1/%61dmin/evil"), "", nil, false},
		"second path":                {request("GET", "/v1/models", field{Name: ":path", Value: "/v1/admin/evil"}), "", nil, false},
		"absolute path":              {request("GET", "https://"+host+"/v1/admin/evil"), "", nil, false},
		"opaque path":                {request("GET", "x:v1/admin/evil"), "", nil, false},
		"path with a line":           {request("GET", "/v1/models HTTP/1.1\r\nX-Evil: evil"), "", nil, false},
		"empty path":                 {request("GET", "", field{Name: "x-a", Value: "evil"}), "", nil, false},
		"override":                   {request("GET", "/v1/evil", field{Name: "x-http-method-override", Value: "DELETE"}), "", nil, false},
		"protocol":                   {request("CONNECT", "/v1/evil", field{Name: ":protocol", Value: "websocket"}), "", nil, false},
		"body":                       {request("POST", "/v1/messages", json), `{"mcp_servers":["evil"]}`, nil, false},
		"body beyond its length":     {request("POST", "/v1/messages", json, field{Name: "content-length", Value: "2"}), `{}{"mcp_servers":["evil"]}`, nil, false},
		"body short of it":           {request("POST", "/v1/messages", json, field{Name: "content-length", Value: "40"}), `{"a":"evil"}`, nil, false},
		"two lengths":                {request("POST", "/v1/messages", json, field{Name: "content-length", Value: "2"}, field{Name: "content-length", Value: "12"}), `{"a":"evil"}`, nil, false},
		"two types":                  {request("POST", "/v1/messages", json, field{Name: "content-type", Value: "text/plain"}), `{"a":"evil"}`, nil, false},
		"transfer coding":            {request("POST", "/v1/messages", json, field{Name: "transfer-encoding", Value: "chunked"}), `{"a":"evil"}`, nil, false},
		"pseudo-header in a trailer": {request("POST", "/v1/messages", json), `{"a":"evil"}`, []field{{Name: ":path", Value: "/v1/admin/evil"}}, false},
		"scheme":                     {append([]field{{Name: ":scheme", Value: "gopher"}}, request("DELETE", "/v1/evil")...), "", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, judgedPolicy())
			raw := f.rawUpstream()
			status := framesTwo(t, f.dial("h2"), c.fields, c.body, c.trailers)
			seen := raw.all()
			if strings.Contains(strings.ToLower(seen), "evil") || c.sent != (seen != "") || c.sent != (status == "200") {
				t.Errorf("answered %s, the host sees %q", status, seen)
			}
		})
	}
}

// framesTwo sends a request as frames and returns the status, or the error.
func framesTwo(t *testing.T, conn net.Conn, fields []hpack.HeaderField, body string, trailers []hpack.HeaderField) string {
	t.Helper()
	conn.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(conn, http2.ClientPreface)
	f := http2.NewFramer(conn, conn)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.WriteSettings()
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	write := func(fields []hpack.HeaderField, end bool) {
		block.Reset()
		for _, h := range fields {
			e.WriteField(h)
		}
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end})
	}
	write(fields, body == "")
	for ; body != ""; body = body[min(5, len(body)):] {
		f.WriteData(1, len(body) <= 5 && trailers == nil, []byte(body[:min(5, len(body))]))
	}
	if trailers != nil {
		write(trailers, true)
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err.Error()
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			return frame.PseudoValue("status")
		case *http2.RSTStreamFrame:
			return frame.ErrCode.String()
		case *http2.GoAwayFrame:
			return frame.ErrCode.String()
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				f.WriteSettingsAck()
			}
		}
	}
}

// sendJSON sends a request from the sandbox and returns the answer.
func (f *fixture) sendJSON(method, url, body string) (*http.Response, string) {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	return f.do(f.client(false), r)
}

// TestRefusalsExplain checks that programs and the log get the deciding rule,
// the reason, and the requests that would pass.
func TestRefusalsExplain(t *testing.T) {
	f := newFixture(t, judgedPolicy())
	f.upstream(host, true, func(rw http.ResponseWriter, r *http.Request) {})
	base := "https://" + host
	for _, c := range []struct {
		method, path, body string
		status             int
		text, rule         string
	}{
		{"GET", "/v1/models", "", 200, "", "GET " + host + "/v1/**"},
		{"GET", "/v1/admin/x", "", 403, `forbids it: for people only`, "deny * " + host + "/v1/admin/**"},
		{"DELETE", "/v1/files/1", "", 403, "no request rule allows DELETE /v1/files/1", ""},
		{"POST", "/v1/messages", `{"max_tokens":5000}`, 403, `the body breaks "max_tokens max 4096"`, ""},
		{"POST", "/v1/messages", `{"a":1,"a":2}`, 403, "is not JSON as everybody reads it", "POST " + host + "/v1/messages where mcp_servers absent"},
		{"POST", "/v1/messages", `{"a":"` + strings.Repeat("a", 65<<10) + `"}`, 413, "longer than 65536 bytes", "POST " + host + "/v1/messages"},
	} {
		res, text := f.sendJSON(c.method, base+c.path, c.body)
		if res.StatusCode != c.status || !strings.Contains(text, c.text) || !strings.Contains(strings.ReplaceAll(res.Header.Get("X-Engi-Error"), "; ", "\n"), c.text) {
			t.Errorf("%s %s: %s %q %v", c.method, c.path, res.Status, text, res.Header)
		}
		if strings.Contains(text, "no request rule") && !strings.Contains(text, "GET "+host+"/v1/**") {
			t.Errorf("%s %s: %q does not say what may pass", c.method, c.path, text)
		}
		e := f.seen()[len(f.seen())-1]
		if e.Kind != engi.NetworkRequest || e.Allowed != (c.status == 200) || !strings.HasPrefix(e.Rule, c.rule) || c.rule == "" && e.Rule != "" || !strings.Contains(e.Reason, c.method+" "+c.path) {
			t.Errorf("%s %s: logged %+v", c.method, c.path, e)
		}
	}
}

// TestGrantsForRequests checks that a secret is sent only with the requests of its grant,
// and that no other request passes unless the policy's rules allow it.
func TestGrantsForRequests(t *testing.T) {
	rule := func(method, path string) engi.RequestRule {
		return engi.RequestRule{Methods: []string{method}, Path: path}
	}
	p := engi.NetworkPolicy{Mode: engi.NetworkRestricted, Grants: []engi.Grant{
		{Secret: "TOKEN", Hosts: []string{host}, Requests: []engi.RequestRule{rule("POST", "/v1/messages")}},
		{Secret: "OTHER", Hosts: []string{host}, As: engi.GrantHeader, Name: "X-Other", Requests: []engi.RequestRule{rule("GET", "/v1/models"), rule("POST", "/v1/**")}},
	}}
	open := p
	open.Requests = []engi.RequestRule{{Host: host, Methods: []string{"GET"}, Path: "/v1/public"}, {Host: host, Path: "/v1/messages/x", Action: engi.RequestDeny}}
	for name, c := range map[string]struct {
		policy       engi.NetworkPolicy
		method, path string
		want         string // secrets that arrive; - if the request does not arrive
	}{
		"both":                 {p, "POST", "/v1/messages", "token other"},
		"one":                  {p, "GET", "/v1/models", " other"},
		"nothing else":         {p, "GET", "/v1/files", "-"},
		"nor another method":   {p, "PUT", "/v1/messages", "-"},
		"without any":          {open, "GET", "/v1/public", " "},
		"denied by the policy": {open, "POST", "/v1/messages/x", "-"},
		"as before":            {open, "POST", "/v1/messages", "token other"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, c.policy)
			f.secrets["OTHER"] = "0ther-secret"
			got := "-"
			f.upstream(host, true, func(rw http.ResponseWriter, r *http.Request) {
				got = strings.Replace(r.Header.Get("Authorization"), "Bearer "+plain, "token", 1) + " " + strings.Replace(r.Header.Get("X-Other"), "0ther-secret", "other", 1)
			})
			res, text := f.sendJSON(c.method, "https://"+host+c.path, "")
			if got != c.want || (got == "-") != (res.StatusCode == 403) {
				t.Errorf("the host got %q: %s %s", got, res.Status, text)
			}
		})
	}
}

// TestJudgedHostsEverywhere sends requests that no rule covers to a judged host: over plain HTTP,
// and to another port.
func TestJudgedHostsEverywhere(t *testing.T) {
	f := newFixture(t, judgedPolicy())
	f.upstream(host, true, func(http.ResponseWriter, *http.Request) { t.Error("the request was sent") })
	f.route(host+":80", "127.0.0.1:1")
	if !f.i.Intercepts(f.id, host, 80, false) || !f.i.Intercepts(f.id, host, 8443, true) || f.i.Intercepts(f.id, "other.example.com", 443, true) {
		t.Error("the wrong connections are intercepted")
	}
	if res, text := f.get(f.client(false), "http://"+host+"/v1/models"); res.StatusCode != 403 || !strings.Contains(text, "the network policy allows no traffic") {
		t.Errorf("plain HTTP: %s %q", res.Status, text)
	}
	p := judgedPolicy()
	p.Requests = append(p.Requests, engi.RequestRule{Host: "http://" + host, Methods: []string{"GET"}, Path: "/plain"})
	f.open(p)
	if res, text := f.get(f.client(false), "http://"+host+"/v1/models"); res.StatusCode != 403 || !strings.Contains(text, "GET http://"+host+"/plain") {
		t.Errorf("plain HTTP: %s %q", res.Status, text)
	}
	if res, text := f.get(f.client(false), "http://"+host+"/plain"); res.StatusCode != 502 { // nothing listens there
		t.Errorf("plain HTTP: %s %q", res.Status, text)
	}
}

// TestWebSocketsNeedARule opens a WebSocket where a rule names it.
func TestWebSocketsNeedARule(t *testing.T) {
	f := newFixture(t, engi.NetworkPolicy{Mode: engi.NetworkRestricted, Requests: []engi.RequestRule{{Host: host, Methods: []string{"WEBSOCKET"}, Path: "/live"}, {Host: host}}})
	var opened atomic.Int64
	f.upstream(host, false, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		opened.Add(1)
		rw.Header().Set("Upgrade", "websocket")
		rw.Header().Set("Connection", "Upgrade")
		rw.WriteHeader(101)
	})
	for path, want := range map[string]int{"/live": 101, "/other": 403} {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+path, nil)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "websocket")
		res, err := f.client(false).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("%d were opened", n)
	}
}

// A judge decides about held requests.
type judge struct {
	mu    sync.Mutex
	asked []engi.HeldRequest
	say   func(context.Context, engi.HeldRequest) (engi.ApprovalDecision, error)
}

func (j *judge) Ask(ctx context.Context, r engi.HeldRequest) (engi.ApprovalDecision, error) {
	r.Body = bytes.Clone(r.Body[:min(len(r.Body), 1000)]) // the body must not be kept
	j.mu.Lock()
	j.asked = append(j.asked, r)
	j.mu.Unlock()
	return j.say(ctx, r)
}

func askingPolicy() engi.NetworkPolicy {
	return engi.NetworkPolicy{Mode: engi.NetworkRestricted, Grants: []engi.Grant{{Secret: "TOKEN", Hosts: []string{host}}}, Requests: []engi.RequestRule{
		{Host: host, Methods: []string{"POST"}, Path: "/pay", Action: engi.RequestAskExact, MaxBody: 100, Body: []string{"amount max 10"}},
		{Host: host, Methods: []string{"GET"}},
	}}
}

// TestHeldRequests checks that a request is held until it is approved.
func TestHeldRequests(t *testing.T) {
	const idle = 3 * time.Second
	j := &judge{}
	f := newFixture(t, askingPolicy(), func(o *intercept.Options) { o.Approver = j; o.IdleTimeout = idle })
	var sent atomic.Int64
	f.upstream(host, true, func(rw http.ResponseWriter, r *http.Request) {
		sent.Add(1)
		io.Copy(rw, r.Body)
	})
	base := "https://" + host
	say := func(d engi.ApprovalDecision, err error, after time.Duration) {
		j.say = func(context.Context, engi.HeldRequest) (engi.ApprovalDecision, error) {
			time.Sleep(after)
			return d, err
		}
	}
	say(engi.ApprovalDecision{Allowed: true}, nil, idle+idle/2) // longer than a connection may be idle
	if res, text := f.sendJSON("POST", base+"/pay?a=1", `{"amount":5}`); res.StatusCode != 200 || text != `{"amount":5}` || sent.Load() != 1 {
		t.Errorf("approved: %s %q", res.Status, text)
	}
	q := j.asked[0]
	if q.Sandbox != f.id || q.Owner != "ann" || q.Host != host || q.Port != 443 || q.Method != "POST" || q.Path != "/pay?a=1" || fmt.Sprint(q.Secrets) != "[TOKEN]" ||
		string(q.Body) != `{"amount":5}` || !q.Exact || !strings.HasPrefix(q.Rule, "ask_exact POST "+host+"/pay") {
		t.Errorf("asked about %+v", q)
	}
	if e := f.seen()[len(f.seen())-1]; !e.Allowed || !strings.Contains(e.Reason, "approved") || !strings.HasPrefix(e.Rule, "ask_exact POST") {
		t.Errorf("logged %+v", e)
	}
	say(engi.ApprovalDecision{Reason: "not today"}, nil, 0)
	if res, text := f.sendJSON("POST", base+"/pay", `{"amount":5}`); res.StatusCode != 403 || !strings.Contains(text, "not today") {
		t.Errorf("refused: %s %q", res.Status, text)
	}
	if e := f.seen()[len(f.seen())-1]; e.Allowed || !strings.HasPrefix(e.Rule, "ask_exact POST") || !strings.Contains(e.Reason, "not today") {
		t.Errorf("logged %+v", e)
	}
	say(engi.ApprovalDecision{}, engi.Errorf(engi.Exhausted, "too many"), 0)
	if res, text := f.sendJSON("POST", base+"/pay", `{"amount":5}`); res.StatusCode != 503 || !strings.Contains(text, "too many requests are waiting") {
		t.Errorf("too many: %s %q", res.Status, text)
	}
	asked := len(j.asked)
	for body, status := range map[string]int{`{"amount":50}`: 403, `{"amount":5,"b":"` + strings.Repeat("b", 100) + `"}`: 413} {
		if res, text := f.sendJSON("POST", base+"/pay", body); res.StatusCode != status {
			t.Errorf("%s: %s %q", body, res.Status, text)
		}
	}
	if sent.Load() != 1 || len(j.asked) != asked {
		t.Errorf("%d requests were sent, %d asked about", sent.Load(), len(j.asked))
	}
	j.say = func(context.Context, engi.HeldRequest) (engi.ApprovalDecision, error) {
		f.open(judgedPolicy())
		return engi.ApprovalDecision{Allowed: true}, nil
	}
	if res, text := f.sendJSON("POST", base+"/pay", `{"amount":5}`); res.StatusCode != 403 || !strings.Contains(text, "the policy changed") {
		t.Errorf("another policy: %s %q", res.Status, text)
	}
}

// TestHeldRequestsEndWithTheProgram checks that a question ends when the client that waits
// for the answer disconnects, with either protocol.
func TestHeldRequestsEndWithTheProgram(t *testing.T) {
	for _, two := range []bool{false, true} {
		asked, ended := make(chan struct{}), make(chan error, 1)
		j := &judge{say: func(ctx context.Context, _ engi.HeldRequest) (engi.ApprovalDecision, error) {
			close(asked)
			<-ctx.Done()
			ended <- ctx.Err()
			return engi.ApprovalDecision{}, ctx.Err()
		}}
		f := newFixture(t, askingPolicy(), func(o *intercept.Options) { o.Approver = j })
		f.upstream(host, true, func(http.ResponseWriter, *http.Request) { t.Error("the request was sent") })
		ctx, leave := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, "POST", "https://"+host+"/pay", strings.NewReader(`{"amount":5}`))
		r.Header.Set("Content-Type", "application/json")
		go func() { <-asked; leave() }()
		if res, err := f.client(two).Do(r); err == nil {
			t.Errorf("answered %s", res.Status)
		}
		<-ended
	}
}

// TestHeldBodiesAreBounded makes an owner's programs send more bytes than may be held.
func TestHeldBodiesAreBounded(t *testing.T) {
	t.Cleanup(runtime.GC) // other tests measure the heap
	let := make(chan struct{})
	var asked atomic.Int64
	j := &judge{say: func(context.Context, engi.HeldRequest) (engi.ApprovalDecision, error) {
		asked.Add(1)
		<-let
		return engi.ApprovalDecision{}, nil
	}}
	f := newFixture(t, engi.NetworkPolicy{Mode: engi.NetworkRestricted, Requests: []engi.RequestRule{{Host: host, Action: engi.RequestAsk, MaxBody: 32 << 20}}},
		func(o *intercept.Options) { o.Approver = j })
	answers := make(chan int, 4)
	send := func() {
		r, _ := http.NewRequestWithContext(t.Context(), "POST", "https://"+host+"/", &zeros{20 << 20})
		r.ContentLength = 20 << 20
		res, _ := f.do(f.client(false), r)
		answers <- res.StatusCode
	}
	for range 3 {
		go send()
	}
	if status := <-answers; status != 503 {
		t.Errorf("one more body: %d", status)
	}
	close(let)
	for range 2 {
		if status := <-answers; status != 403 {
			t.Errorf("a refused one: %d", status)
		}
	}
	send()
	if status := <-answers; status != 403 || asked.Load() != 3 {
		t.Errorf("afterwards: %d, %d were asked about", status, asked.Load())
	}
}
