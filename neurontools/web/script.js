// Applies the changes of a page from the server's event stream, shows values of charts, and handles keys.
// Builds elements from lists of tags, attributes and texts. Never parses HTML.
"use strict";
(() => {
  const root = document.getElementById("page"), state = document.getElementById("state");
  const token = location.hash.slice(1), form = document.getElementById("session");
  if (form) {
    // A link may carry the token after "#", which browsers never send. Removes it from the address, then submits it.
    if (token) {
      history.replaceState(null, "", location.pathname + location.search);
      form.elements.token.value = decodeURIComponent(token);
      form.submit();
    }
    return;
  }
  if (!root) return;

  let version = document.body.dataset.version, source = null, receivedAt = performance.now();
  let lost = 0, timer = 0, isPaused = false;
  const streamUrl = new URL(location.href);
  streamUrl.hash = "";

  const svgTags = new Set(["svg", "path", "polyline", "rect", "text", "g"]);
  const refusedTags = new Set(["script", "style", "link", "meta", "iframe", "object", "embed", "base", "form"]);
  const setAttribute = (node, name, value) => {
    if (value === null) node.removeAttribute(name);
    else if (!/^(on|style$|src)/.test(name) && (name !== "href" || /^[/?#]/.test(value))) node.setAttribute(name, value);
  };
  const build = (tree, inSvg) => {
    if (typeof tree === "string") return document.createTextNode(tree);
    const [tag, attributes, children] = tree;
    const isSvg = svgTags.has(tag) || inSvg;
    const name = refusedTags.has(tag) ? "span" : tag;
    const node = isSvg ? document.createElementNS("http\u003a//www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) setAttribute(node, key, value);
    node.append(...children.map(child => build(child, isSvg)));
    return node;
  };
  const isInSvg = node => node instanceof SVGElement;
  const apply = ([path, kind, content]) => {
    const node = path.reduce((at, place) => at.childNodes[place], root);
    if (kind === "text") node.data = content;
    else if (kind === "node") node.replaceWith(build(content, isInSvg(node.parentNode)));
    else if (kind === "children") node.replaceChildren(...content.map(child => build(child, isInSvg(node))));
    else for (const [name, value] of Object.entries(content)) setAttribute(node, name, value);
  };
  const keepFocus = change => {
    const at = document.activeElement, address = root.contains(at) && at.getAttribute("href");
    change();
    if (address && !at.isConnected)
      [...root.querySelectorAll("a")].find(link => link.getAttribute("href") === address)?.focus({preventScroll: true});
  };

  const clock = (at = new Date()) => at.toLocaleTimeString([], {hour12: false});
  const showState = text => { if (state.textContent !== text) state.textContent = text; };
  const markLost = () => {
    if (!lost) { lost = performance.now(); root.classList.add("lost"); markLost.since = clock(); }
    const seconds = Math.round((performance.now() - receivedAt) / 1000);
    showState(`LOST since ${markLost.since}: the figures are ${seconds} s old; trying again`);
  };
  const markReceived = () => {
    receivedAt = performance.now();
    lost = 0;
    root.classList.remove("lost");
    showState("");
  };

  const applyUpdate = event => {
    const update = JSON.parse(event.data);
    markReceived();
    version = event.lastEventId;
    clearCursors();
    keepFocus(() => {
      if (update.whole) root.replaceChildren(...update.whole.map(child => build(child, false)));
      (update.changes || []).forEach(apply);
    });
    if (update.title && document.title !== update.title) document.title = update.title;
    if (pointer) showValue(pointer);
  };
  const close = () => { if (source) source.close(); source = null; clearTimeout(timer); };
  const open = () => {
    close();
    streamUrl.searchParams.set("since", version);
    source = new EventSource(streamUrl);
    source.addEventListener("changes", applyUpdate);
    source.addEventListener("beat", markReceived);
    source.addEventListener("error", () => source.readyState === EventSource.CLOSED ? checkStatus() : markLost());
  };
  // EventSource does not report why the server refused the stream, so asks for the status of the page.
  const checkStatus = async () => {
    close();
    try {
      const answer = await fetch(location.href, {method: "HEAD"});
      if (answer.status === 401 || answer.status === 404) return location.reload();
      if (!answer.ok) throw answer.status;
      lost = 0;
      root.classList.remove("lost");
      showState("too many viewers: the figures are not updated; trying again");
    } catch { markLost(); }
    timer = setTimeout(open, 3000);
  };

  // The value of a chart below the pointer, and a line at its time.
  let pointer = null;
  const cursors = new Set();
  const clearCursors = () => { for (const each of cursors) each.remove(); cursors.clear(); };
  const showValue = ({clientX, clientY}) => {
    clearCursors();
    const svg = document.elementFromPoint(clientX, clientY)?.closest("svg[data-values],svg[data-rows]");
    for (const each of root.querySelectorAll("output")) if (!svg || !each.closest("figure").contains(svg)) each.textContent = "";
    if (!svg) return;
    const box = svg.getBoundingClientRect(), across = svg.viewBox.baseVal.width, down = svg.viewBox.baseVal.height;
    const share = Math.min(0.9999, Math.max(0, (clientX - box.left) / box.width));
    const {values, rows, columns, from, step} = svg.dataset;
    const list = values === undefined ? null : values.split("|");
    const column = Math.floor(share * (list ? list.length : across));
    const when = from === undefined ? `${columns} ${column}` : clock(new Date((Number(from) + column * Number(step)) * 1000));
    let text = "";
    if (list) {
      text = list[column] || "no data";
      const line = document.createElementNS(svg.namespaceURI, "path");
      line.setAttribute("d", `M${(column + 0.5) * across / list.length},0v${down}`);
      line.setAttribute("class", "cursor");
      svg.append(line);
      cursors.add(line);
    } else {
      const row = Math.min(down - 1, Math.max(0, Math.floor((clientY - box.top) / box.height * down)));
      text = `${rows.split("|")[row]}: ${document.elementFromPoint(clientX, clientY).dataset?.label || "no data"}`;
    }
    svg.closest("figure").querySelector("output").textContent = `${when}: ${text}`;
  };
  addEventListener("pointermove", event => { pointer = event; showValue(event); });
  addEventListener("pointerdown", event => { pointer = event; showValue(event); });

  const moveFocus = step => {
    const links = [...root.querySelectorAll("tbody a, .findings a, .devices a")].filter(each => each.offsetParent);
    const at = links.indexOf(document.activeElement);
    links[at < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + step))]?.focus();
  };
  const togglePause = () => {
    isPaused = !isPaused;
    if (isPaused) { close(); showState(`PAUSED since ${clock()}: press p to continue`); } else { showState(""); open(); }
  };
  addEventListener("keydown", event => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
    const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
    if (isTyping) { if (event.key === "Escape") event.target.blur(); return; }
    const target = [...document.querySelectorAll("[data-key]")].find(each => each.dataset.key === event.key);
    if (target) { if (target.tagName === "INPUT") target.focus(); else target.click(); }
    else if (event.key === "?") { const keys = document.getElementById("keys"); keys.open = !keys.open; keys.scrollIntoView(); }
    else if (event.key === "j" || event.key === "k") moveFocus(event.key === "j" ? 1 : -1);
    else if (event.key === "p") togglePause();
    else return;
    event.preventDefault();
  });

  // Browsers limit the connections to a host, so a hidden tab closes its stream.
  document.addEventListener("visibilitychange", () => { if (document.hidden || isPaused) close(); else open(); });
  setInterval(() => {
    if (isPaused) return;
    if (lost) markLost();
    else if (source && performance.now() - receivedAt > 25000) { markLost(); open(); }
  }, 1000);
  open();
})();
