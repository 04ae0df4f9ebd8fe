// Browsers start no worker from a page that was opened as a file, and the site's search is one.
// Here its script runs in a hidden frame, which is told and tells the same messages.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    frame.srcdoc = "<!doctype html>";
    this.inside = new Promise((started) => {
      frame.addEventListener("load", () => started(this.#start(frame.contentWindow, url)));
    });
    document.body.append(frame);
  }

  #start(inside, url) {
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    const script = inside.document.createElement("script");
    script.src = url;
    inside.document.body.append(script);
    return new Promise((loaded) => (script.onload = () => loaded(inside)));
  }

  async postMessage(data) {
    (await this.inside).dispatchEvent(new MessageEvent("message", { data }));
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
