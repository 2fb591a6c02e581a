// Updates the page with changed rows from the server's event stream, and shows when the stream is lost.
// Inserts received texts as text nodes and never parses HTML.
"use strict";
(() => {
  const screen = document.getElementById("screen"), state = document.getElementById("state");
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
  if (!screen) return;

  const tags = {t: "h1", h: "h2", n: "nav"}, groups = {c: "table", r: "table", i: "list"};
  let version = screen.dataset.version, source = null, receivedAt = performance.now(), lost = 0, timer = 0;
  const streamUrl = new URL(location.href);
  streamUrl.hash = "";

  const make = (tag, attributes, content) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value) node.setAttribute(name, value);
    node.append(...content);
    return node;
  };
  const segment = ([text, classes, address]) => {
    if (!classes && !address) return text;
    const hidden = classes.split(" ").includes("x") ? "true" : "";
    return address
      ? make("a", {href: /^[/?]/.test(address) ? address : "", class: classes, "aria-hidden": hidden}, [text])
      : make("span", {class: classes, "aria-hidden": hidden}, [text]);
  };
  const row = ([kind, cells]) => {
    if (kind === "c" || kind === "r") {
      const role = kind === "c" ? "columnheader" : "cell";
      return make("div", {class: "l", role: "row"}, cells.map(cell => make("span", {role}, cell.map(segment))));
    }
    const attributes = {class: "l", role: kind === "i" ? "listitem" : "", "aria-label": kind === "n" ? "Processes" : ""};
    return make(tags[kind] || "div", attributes, cells.flat().map(segment));
  };
  const replaceRows = rows => {
    const blocks = [];
    let group = null, kindOfGroup = "";
    for (const each of rows) {
      const groupRole = groups[each[0]] || "";
      if (!groupRole) { blocks.push(row(each)); group = null; kindOfGroup = ""; continue; }
      if (!group || groupRole !== kindOfGroup || each[0] === "c") blocks.push(group = make("div", {role: groupRole}, []));
      kindOfGroup = groupRole;
      group.append(row(each));
    }
    screen.replaceChildren(...blocks);
  };
  const keepFocus = change => {
    const at = document.activeElement, address = screen.contains(at) && at.getAttribute("href");
    change();
    if (address && !at.isConnected)
      [...screen.querySelectorAll("a")].find(link => link.getAttribute("href") === address)?.focus({preventScroll: true});
  };

  const clock = () => new Date().toLocaleTimeString([], {hour12: false});
  const showState = text => { if (state.textContent !== text) state.textContent = text; };
  const markLost = () => {
    if (!lost) { lost = performance.now(); screen.classList.add("lost"); markLost.since = clock(); }
    const seconds = Math.round((performance.now() - receivedAt) / 1000);
    showState(`LOST since ${markLost.since}: the figures are ${seconds} s old; trying again`);
  };
  const markReceived = () => {
    receivedAt = performance.now();
    lost = 0;
    screen.classList.remove("lost");
    showState("");
  };

  const applyUpdate = event => {
    const update = JSON.parse(event.data);
    markReceived();
    version = event.lastEventId;
    keepFocus(() => {
      if (update.whole) replaceRows(update.whole);
      const lines = update.rows ? screen.querySelectorAll(".l") : [];
      for (const [number, each] of update.rows || []) lines[number].replaceWith(row(each));
    });
    if (update.title && document.title !== update.title) document.title = update.title;
  };
  const close = () => { if (source) source.close(); source = null; clearTimeout(timer); };
  const open = () => {
    close();
    streamUrl.searchParams.set("since", version);
    source = new EventSource(streamUrl);
    source.addEventListener("rows", applyUpdate);
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
      screen.classList.remove("lost");
      showState("too many viewers: the figures are not updated; trying again");
    } catch { markLost(); }
    timer = setTimeout(open, 3000);
  };

  const width = make("span", {}, ["0".repeat(100)]);
  const fit = () => {
    document.body.append(width);
    const fittingColumns = (document.documentElement.clientWidth - 48) / (width.getBoundingClientRect().width / 100);
    width.remove();
    const columns = [240, 200, 160, 140, 120, 100, 80, 60].find(each => each <= fittingColumns) || 60;
    if (screen.className.split(" ")[0] === `c${columns}`) return true;
    const target = new URL(location.href);
    target.searchParams.set("columns", columns);
    location.replace(target);
    return false;
  };

  if (!fit()) return;
  let resized = 0;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(fit, 300); });
  // Browsers limit the connections to a host, so a hidden tab closes its stream.
  document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
  setInterval(() => {
    if (lost) markLost();
    else if (source && performance.now() - receivedAt > 25000) { markLost(); open(); }
  }, 1000);
  open();
})();
