package v1

// A Mirror is the state of the mirror of package registries.
type Mirror struct {
	Offline    bool              `json:"offline" doc:"The mirror sends no requests to registries"`
	Files      int               `json:"files" doc:"Number of cached files"`
	Bytes      Bytes             `json:"bytes" doc:"Size of the cached files, in bytes"`
	Size       Bytes             `json:"size" doc:"Maximum size of the cache, in bytes"`
	Ecosystems []MirrorEcosystem `json:"ecosystems"`
}

// A MirrorEcosystem is one kind of registry. Numbers count from the start of
// the node.
type MirrorEcosystem struct {
	Name     string   `json:"name" example:"npm"`
	Upstream string   `json:"upstream" example:"https://registry.npmjs.org"`
	Hosts    []string `json:"hosts" doc:"Hosts that the mirror replaces in sandboxes"`
	Requests int64    `json:"requests" doc:"Number of requests of sandboxes"`
	Hits     int64    `json:"hits" doc:"Number of lookups answered from the cache, including metadata of files"`
	Fetched  int64    `json:"fetched" doc:"Number of registry answers that were cached"`
	Refused  int64    `json:"refused" doc:"Number of requests that were refused or failed"`
	Bytes    Bytes    `json:"bytes" doc:"Bytes received from the registry"`
}

// A MirrorWarmRequest holds files that name packages.
type MirrorWarmRequest struct {
	Files []MirrorFile `json:"files" minItems:"1" maxItems:"100"`
}

// A MirrorFile is a lock file.
type MirrorFile struct {
	Name    string `json:"name" minLength:"1" maxLength:"256" doc:"Name of the lock file, from which its format is recognized" example:"package-lock.json"`
	Content string `json:"content"`
}

// A MirrorUpdate is an event of a stream of POST /v1/mirror/warm.
type MirrorUpdate struct {
	Type    string   `json:"type" enum:"progress,result,heartbeat,error"`
	Done    int      `json:"done" doc:"Number of packages processed"`
	Total   int      `json:"total"`
	Failed  int      `json:"failed" doc:"Number of packages that could not be fetched"`
	Package string   `json:"package,omitempty" doc:"Package of this event"`
	Bytes   Bytes    `json:"bytes" doc:"Bytes of all packages so far"`
	Problem *Problem `json:"problem,omitempty" doc:"Reason why the package could not be fetched"`
	Error   *Problem `json:"error,omitempty" doc:"Reason why the stream ends"`
}
