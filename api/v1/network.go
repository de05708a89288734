package v1

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"
)

// Modes of a network policy, narrowest first.
const (
	NetworkNone       = "none"       // only loopback
	NetworkIsolated   = "isolated"   // only peers of the sandbox's group
	NetworkRestricted = "restricted" // peers and the destinations in allow
	NetworkOpen       = "open"       // peers and all public addresses except those in deny
)

// A NetworkPolicy defines the network access of a sandbox. docs/network.md describes
// the rules.
type NetworkPolicy struct {
	Mode     string         `json:"mode,omitempty" enum:"none,isolated,restricted,open" doc:"Mode; absent means the node's default, or restricted if there is allow, grants or requests"`
	Allow    []string       `json:"allow,omitempty" doc:"Rules of the form [PROTOCOL://]TARGET[:PORT[-PORT]], where TARGET is a name, *.SUFFIX, address or network; allow takes precedence over deny" example:"[\"api.example.com\",\"*.example.org:443\",\"1.1.1.0/24\"]"`
	Deny     []string       `json:"deny,omitempty" doc:"Rules of the same form as in allow" example:"[\"203.0.113.0/24\"]"`
	Grants   []Grant        `json:"grants,omitempty" doc:"Secrets that are added to outgoing requests and never enter the sandbox"`
	Headers  []HeaderRule   `json:"headers,omitempty" doc:"Headers that are set in outgoing requests"`
	Requests []RequestRule  `json:"requests,omitempty" doc:"Rules for HTTP requests to the hosts that they name; the first matching rule decides, and a request that matches no rule is refused"`
	Proxy    *UpstreamProxy `json:"proxy,omitempty" doc:"Proxy for all traffic"`
	Group    string         `json:"group,omitempty" maxLength:"63" doc:"Network group; sandboxes of one owner and group can reach each other" example:"shop"`
	Name     string         `json:"name,omitempty" maxLength:"63" doc:"Host name in the group, resolved as NAME.GROUP.internal" example:"db"`
	Limits   *NetworkLimits `json:"limits,omitempty" doc:"Traffic limits; absent means the node's"`
}

// A NetworkChoice is the policy of an execution: in JSON an object, or only the
// mode.
type NetworkChoice NetworkPolicy

// UnmarshalJSON implements json.Unmarshaler. It refuses unknown fields, because it is
// used for requests.
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

// A Grant inserts a secret into requests to some hosts.
type Grant struct {
	Secret   string        `json:"secret" minLength:"1" maxLength:"128" doc:"ID or name" example:"github"`
	Hosts    []string      `json:"hosts" doc:"Names and *.SUFFIX, with :PORT to restrict the port, and http:// in front if the secret may be sent unencrypted; these hosts are reachable over TLS even if allow does not name them" example:"[\"api.github.com\"]"`
	As       string        `json:"as,omitempty" enum:"header,bearer,basic,query,placeholder" doc:"How the secret is added; absent means placeholder with env, otherwise bearer"`
	Name     string        `json:"name,omitempty" maxLength:"256" doc:"Name of the header or query parameter; for basic, the user" example:"X-API-Key"`
	Format   string        `json:"format,omitempty" maxLength:"1024" doc:"Format of the header's value, in which {} is the secret" example:"token {}"`
	Env      string        `json:"env,omitempty" maxLength:"256" doc:"Environment variable in the sandbox that is set to a placeholder for the secret" example:"GITHUB_TOKEN"`
	Strip    bool          `json:"strip,omitempty" doc:"Remove the secret's value from responses that contain it"`
	Requests []RequestRule `json:"requests,omitempty" doc:"Requests that get the secret, without host; other requests go without it if the policy's requests allow them, and are refused otherwise; absent means every request"`
}

// A RequestRule decides on HTTP requests by method, path and body. It matches if
// all of its parts match. docs/network-rules.md describes the parts.
type RequestRule struct {
	Host    string   `json:"host,omitempty" maxLength:"300" doc:"Name or *.SUFFIX, written as in grants; absent in a grant" example:"api.example.com"`
	Methods []string `json:"methods,omitempty" doc:"Methods in upper case; WEBSOCKET is the opening of a WebSocket; absent means every method except WEBSOCKET" example:"[\"POST\"]"`
	Path    string   `json:"path,omitempty" maxLength:"1024" doc:"Decoded path without the query; * matches any text within a segment, and /** at the end everything below; absent means /**" example:"/v1/messages"`
	Body    []string `json:"body,omitempty" doc:"Conditions that a JSON body must all fulfil: PATH absent, present, in LIST, not_in LIST, max NUMBER or keys LIST" example:"[\"mcp_servers absent\",\"model in [\\\"small-*\\\"]\"]"`
	MaxBody Bytes    `json:"max_body,omitempty" doc:"Maximum size of a body that the rule examines; absent means 1MiB"`
	Action  string   `json:"action,omitempty" enum:"allow,deny,ask,ask_exact" doc:"allow, deny, ask or ask_exact; ask makes the request wait for approval; with ask_exact, no decision applies to later requests with another query or body; absent means allow"`
	Reason  string   `json:"reason,omitempty" maxLength:"300" doc:"Reason, which the program sees on refusal and approvers see"`
}

// A HeaderRule sets headers in requests to a host.
type HeaderRule struct {
	Host    string            `json:"host" minLength:"1" maxLength:"255" doc:"Name or *.SUFFIX, written as in grants" example:"api.example.com"`
	Headers map[string]string `json:"headers" doc:"Headers; values may name secrets as ${secrets.NAME}" example:"{\"X-Team\":\"blue\"}"`
}

// An UpstreamProxy is a proxy for all traffic.
type UpstreamProxy struct {
	Address  string `json:"address" minLength:"1" maxLength:"512" doc:"socks5://host:port, http://host:port or https://host:port; host:port means socks5" example:"socks5://proxy.example.com:1080"`
	User     string `json:"user,omitempty" maxLength:"255"`
	Password string `json:"password,omitempty" maxLength:"255" doc:"Password; never in a response; absent keeps the current one if address and user are unchanged"`
}

// NetworkLimits limits the traffic of one sandbox.
type NetworkLimits struct {
	Up             Bytes `json:"up,omitempty" doc:"Bytes per second out of the sandbox"`
	Down           Bytes `json:"down,omitempty" doc:"Bytes per second into the sandbox"`
	Connections    int   `json:"connections,omitempty" minimum:"0" doc:"Maximum number of open connections" example:"100"`
	NewConnections int   `json:"new_connections,omitempty" minimum:"0" doc:"Maximum number of new connections per second" example:"20"`
	Lookups        int   `json:"lookups,omitempty" minimum:"0" doc:"Maximum number of DNS lookups per second" example:"20"`
	Total          Bytes `json:"total,omitempty" doc:"Maximum number of bytes in both directions, after which the sandbox has no network"`
}

// Types of network events.
const (
	NetworkLookup  = "lookup"  // a DNS question
	NetworkConnect = "connect" // a connection or the first datagram
	NetworkClaim   = "claim"   // the host that a TLS or HTTP client named, checked against the policy
	NetworkRequest = "request" // an intercepted HTTP request
	NetworkLimit   = "limit"   // a limit was reached
	NetworkClose   = "close"   // the end of an allowed connection
)

// A NetworkRecord is one decision on the traffic of a sandbox.
// Streams also have the types error (the last one) and heartbeat.
type NetworkRecord struct {
	Type      string     `json:"type" enum:"lookup,connect,claim,request,limit,close,error,heartbeat"`
	Seq       int64      `json:"seq" doc:"Seq of the record in its sandbox, from 1; send the last one as after to resume" example:"7"`
	Time      *time.Time `json:"time,omitempty"`
	SandboxID string     `json:"sandbox_id,omitempty" example:"sbx_u2dmwmlezjgprkqrgppgcz2mgu"`
	Allowed   bool       `json:"allowed"`
	Protocol  string     `json:"protocol,omitempty" doc:"tcp, udp or icmp; absent for a lookup" example:"tcp"`
	Host      string     `json:"host,omitempty" doc:"Host name that the program looked up or sent" example:"api.example.com"`
	Address   string     `json:"address,omitempty" doc:"IP address, with the port if there is one" example:"192.0.2.7:443"`
	Rule      string     `json:"rule,omitempty" doc:"Rule that decided, as written; absent if no rule did" example:"*.example.com"`
	Reason    string     `json:"reason,omitempty" doc:"Reason of the decision, as text"`
	Up        Bytes      `json:"up,omitempty" doc:"Bytes sent; only with type close"`
	Down      Bytes      `json:"down,omitempty" doc:"Bytes received; only with type close"`
	Error     *Problem   `json:"error,omitempty" doc:"Error; only with type error"`
}
