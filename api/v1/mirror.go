package v1

// A Mirror is the package broker's state.
type Mirror struct {
	Offline    bool              `json:"offline" doc:"it asks no registry"`
	Files      int               `json:"files" doc:"that are kept"`
	Bytes      Bytes             `json:"bytes" doc:"that they take"`
	Size       Bytes             `json:"size" doc:"that they may take"`
	Ecosystems []MirrorEcosystem `json:"ecosystems"`
}

// A MirrorEcosystem is one kind of registry. Numbers are those since the start of
// the node.
type MirrorEcosystem struct {
	Name     string   `json:"name" example:"npm"`
	Upstream string   `json:"upstream" example:"https://registry.npmjs.org"`
	Hosts    []string `json:"hosts" doc:"that it stands for in sandboxes"`
	Requests int64    `json:"requests" doc:"of sandboxes"`
	Hits     int64    `json:"hits" doc:"lookups that found what they looked for in the cache, those for metadata of files among them"`
	Fetched  int64    `json:"fetched" doc:"answers of the registry that were kept"`
	Refused  int64    `json:"refused" doc:"requests that were refused or failed"`
	Bytes    Bytes    `json:"bytes" doc:"from the registry"`
}

// MirrorWarmRequest are files that name packages.
type MirrorWarmRequest struct {
	Files []MirrorFile `json:"files" minItems:"1" maxItems:"100"`
}

// A MirrorFile is a lock file.
type MirrorFile struct {
	Name    string `json:"name" minLength:"1" maxLength:"256" doc:"tells what it is" example:"package-lock.json"`
	Content string `json:"content"`
}

// A MirrorUpdate is an event of a stream of POST /v1/mirror/warm.
type MirrorUpdate struct {
	Type    string   `json:"type" enum:"progress,result,heartbeat,error"`
	Done    int      `json:"done" doc:"packages that were looked at"`
	Total   int      `json:"total"`
	Failed  int      `json:"failed" doc:"of them could not be had"`
	Package string   `json:"package,omitempty" doc:"that this event is about"`
	Bytes   Bytes    `json:"bytes" doc:"of all packages so far"`
	Problem *Problem `json:"problem,omitempty" doc:"why the package could not be had"`
	Error   *Problem `json:"error,omitempty" doc:"why the stream ends"`
}
