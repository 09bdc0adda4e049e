// Search in pages that are opened from files: browsers start no workers there, so the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      // The script of the worker answers by the frame's postMessage, which is led to the listeners of this object.
      this.frame.answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      this.frame.srcdoc =
        "<script>window.postMessage = (data) => frameElement.answer(data)</" + "script>" +
        `<script src="${new URL(address, location)}"></` + "script>"
      this.ready = new Promise((done) => this.frame.addEventListener("load", done, { once: true }))
      document.body.append(this.frame)
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
