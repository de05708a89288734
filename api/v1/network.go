package v1

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"
)

// Modes of a network policy, the narrowest first.
const (
	NetworkNone       = "none"       // loopback only
	NetworkIsolated   = "isolated"   // peers of its group and nothing else
	NetworkRestricted = "restricted" // peers and what allow names
	NetworkOpen       = "open"       // peers and every public address that deny does not name
)

// A NetworkPolicy says what a sandbox may reach. docs/network.md describes
// the rules.
type NetworkPolicy struct {
	Mode     string         `json:"mode,omitempty" enum:"none,isolated,restricted,open" doc:"absent means the node's default; restricted if there is allow, grants or requests"`
	Allow    []string       `json:"allow,omitempty" doc:"rules [PROTOCOL://]TARGET[:PORT[-PORT]]: names, *.SUFFIX, addresses, networks; allow wins over deny" example:"[\"api.example.com\",\"*.example.org:443\",\"1.1.1.0/24\"]"`
	Deny     []string       `json:"deny,omitempty" doc:"rules of the same form" example:"[\"203.0.113.0/24\"]"`
	Grants   []Grant        `json:"grants,omitempty" doc:"secrets that are put into outgoing requests and never enter the sandbox"`
	Headers  []HeaderRule   `json:"headers,omitempty" doc:"headers that are set in outgoing requests"`
	Requests []RequestRule  `json:"requests,omitempty" doc:"judge each HTTP request to their hosts; the first that matches decides, and what matches none is refused"`
	Proxy    *UpstreamProxy `json:"proxy,omitempty" doc:"all traffic goes through it"`
	Group    string         `json:"group,omitempty" maxLength:"63" doc:"sandboxes of one owner and group can reach each other" example:"shop"`
	Name     string         `json:"name,omitempty" maxLength:"63" doc:"in its group, where it is found as NAME.GROUP.internal" example:"db"`
	Limits   *NetworkLimits `json:"limits,omitempty" doc:"of its traffic; absent means the node's"`
}

// A NetworkChoice is the policy of an execution: in JSON an object, or just the
// mode.
type NetworkChoice NetworkPolicy

// UnmarshalJSON implements json.Unmarshaler. It is for requests, so it refuses
// unknown fields.
func (n *NetworkChoice) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	var mode string
	if json.Unmarshal(data, &mode) == nil {
		*n = NetworkChoice{Mode: mode}
		return nil
	}
	if data[0] != '{' {
		return errors.New(`want a mode such as "none", or an object`)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var p NetworkPolicy
	if err := dec.Decode(&p); err != nil {
		return err
	}
	*n = NetworkChoice(p)
	return nil
}

// A Grant puts a secret into requests to some hosts.
type Grant struct {
	Secret   string        `json:"secret" minLength:"1" maxLength:"128" doc:"ID or name" example:"github"`
	Hosts    []string      `json:"hosts" doc:"names and *.SUFFIX, with :PORT if others are not meant, and http:// in front if the secret may go without encryption; reachable over TLS although allow does not name them" example:"[\"api.github.com\"]"`
	As       string        `json:"as,omitempty" enum:"header,bearer,basic,query,placeholder" doc:"how it is applied; absent means placeholder if there is env, else bearer"`
	Name     string        `json:"name,omitempty" maxLength:"256" doc:"of the header or the query parameter; the user for basic" example:"X-API-Key"`
	Format   string        `json:"format,omitempty" maxLength:"1024" doc:"of the header's value, {} being the secret" example:"token {}"`
	Env      string        `json:"env,omitempty" maxLength:"256" doc:"environment variable in the sandbox that is set to a placeholder for the secret" example:"GITHUB_TOKEN"`
	Strip    bool          `json:"strip,omitempty" doc:"the value is removed from responses that contain it"`
	Requests []RequestRule `json:"requests,omitempty" doc:"the requests that it goes with, without host; others go without it if requests of the policy allow them, else they are refused; absent means every request"`
}

// A RequestRule judges HTTP requests by method, path and body. It matches if
// all of its parts do. docs/network-rules.md describes them.
type RequestRule struct {
	Host    string   `json:"host,omitempty" maxLength:"300" doc:"name or *.SUFFIX, written as in grants; absent in a grant" example:"api.example.com"`
	Methods []string `json:"methods,omitempty" doc:"in upper case, WEBSOCKET for the opening of one; absent means every method but WEBSOCKET" example:"[\"POST\"]"`
	Path    string   `json:"path,omitempty" maxLength:"1024" doc:"decoded and without the query; * is any text within a segment, /** at the end everything below; absent means /**" example:"/v1/messages"`
	Body    []string `json:"body,omitempty" doc:"conditions that a JSON body must all fulfil: PATH absent, present, in LIST, not_in LIST, max NUMBER or keys LIST" example:"[\"mcp_servers absent\",\"model in [\\\"small-*\\\"]\"]"`
	MaxBody Bytes    `json:"max_body,omitempty" doc:"of a body that is judged or asked about; absent means 1MiB"`
	Action  string   `json:"action,omitempty" enum:"allow,deny,ask" doc:"ask has the request wait for a decision; absent means allow"`
	Reason  string   `json:"reason,omitempty" maxLength:"300" doc:"told to the program when the rule refuses, and to whoever is asked"`
}

// A HeaderRule sets headers in requests to a host.
type HeaderRule struct {
	Host    string            `json:"host" minLength:"1" maxLength:"255" doc:"name or *.SUFFIX, written as in grants" example:"api.example.com"`
	Headers map[string]string `json:"headers" doc:"values may name secrets as ${secrets.NAME}" example:"{\"X-Team\":\"blue\"}"`
}

// An UpstreamProxy is a proxy that all traffic goes through.
type UpstreamProxy struct {
	Address  string `json:"address" minLength:"1" maxLength:"512" doc:"socks5://host:port, http://host:port or https://host:port; host:port means socks5" example:"socks5://proxy.example.com:1080"`
	User     string `json:"user,omitempty" maxLength:"255"`
	Password string `json:"password,omitempty" maxLength:"255" doc:"never in a response; absent keeps the current one if address and user are unchanged"`
}

// NetworkLimits bound the traffic of one sandbox.
type NetworkLimits struct {
	Up             Bytes `json:"up,omitempty" doc:"per second, out of the sandbox"`
	Down           Bytes `json:"down,omitempty" doc:"per second, into the sandbox"`
	Connections    int   `json:"connections,omitempty" minimum:"0" doc:"open at once" example:"100"`
	NewConnections int   `json:"new_connections,omitempty" minimum:"0" doc:"per second" example:"20"`
	Lookups        int   `json:"lookups,omitempty" minimum:"0" doc:"DNS questions per second" example:"20"`
	Total          Bytes `json:"total,omitempty" doc:"in both directions, after which the sandbox is cut off"`
}

// Types of network events.
const (
	NetworkLookup  = "lookup"  // a DNS question
	NetworkConnect = "connect" // a connection or the first datagram
	NetworkClaim   = "claim"   // the host a TLS or HTTP client named, against what was allowed
	NetworkRequest = "request" // an intercepted HTTP request
	NetworkLimit   = "limit"   // a bound was reached
	NetworkClose   = "close"   // the end of what connect allowed
)

// A NetworkRecord is one decision on what crosses the wall of a sandbox.
// Streams also have the types error (the last) and heartbeat.
type NetworkRecord struct {
	Type      string     `json:"type" enum:"lookup,connect,claim,request,limit,close,error,heartbeat"`
	Seq       int64      `json:"seq" doc:"per sandbox, from 1; come back with the last as after" example:"7"`
	Time      *time.Time `json:"time,omitempty"`
	SandboxID string     `json:"sandbox_id,omitempty" example:"sbx_u2dmwmlezjgprkqrgppgcz2mgu"`
	Allowed   bool       `json:"allowed"`
	Protocol  string     `json:"protocol,omitempty" doc:"tcp, udp or icmp; absent for lookup" example:"tcp"`
	Host      string     `json:"host,omitempty" doc:"name that was asked for or claimed" example:"api.example.com"`
	Address   string     `json:"address,omitempty" doc:"IP address, with a port if it has one" example:"192.0.2.7:443"`
	Rule      string     `json:"rule,omitempty" doc:"that decided, as written; absent if none did" example:"*.example.com"`
	Reason    string     `json:"reason,omitempty" doc:"as text"`
	Up        Bytes      `json:"up,omitempty" doc:"that left, with type close"`
	Down      Bytes      `json:"down,omitempty" doc:"that arrived, with type close"`
	Error     *Problem   `json:"error,omitempty" doc:"with type error"`
}
