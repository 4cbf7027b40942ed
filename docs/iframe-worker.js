/* Search in pages that are opened as files: browsers refuse workers there, so the script of the
   worker runs in a hidden frame. Material's offline plugin would load a script from elsewhere. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script>self.postMessage = data => parent.postMessage({ fromWorker: data }, "*");
        self.importScripts = (...all) => Promise.all(all.map(one => new Promise(done => {
          const script = document.createElement("script");
          script.src = one;
          script.onload = done;
          document.head.append(script);
        })))</scr` + `ipt><script src="${new URL(address, document.baseURI)}"></scr` + `ipt>`;
      this.ready = new Promise(done => frame.addEventListener("load", done));
      this.frame = frame;
      document.body.append(frame);
      window.addEventListener("message", event => {
        if (event.source === frame.contentWindow && event.data && "fromWorker" in event.data) {
          this.dispatchEvent(new MessageEvent("message", { data: event.data.fromWorker }));
        }
      });
    }

    postMessage(data) {
      this.ready.then(() =>
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
