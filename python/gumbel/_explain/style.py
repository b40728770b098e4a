# SPDX-License-Identifier: Apache-2.0
"""Style and script of the page."""

STYLE = """
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2024;--soft:#5f6772;--line:#e3e6ea;
--tint:#f4f5f7;--bar:#9aa3af;--accent:#1d4ed8}
@media(prefers-color-scheme:dark){:root{--paper:#15171a;--ink:#e4e6e9;--soft:#9aa3ae;
--line:#2c3036;--tint:#1e2125;--bar:#6b7480;--accent:#7da6ff}}
*{box-sizing:border-box}
body{margin:0 auto;padding:20px 16px 48px;max-width:760px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:20px;margin:0 0 4px}
h2{font-size:18px;margin:0 0 2px}
h3{font-size:13px;font-weight:600;margin:26px 0 8px}
p{margin:0 0 8px}
.soft,small,.lead{color:var(--soft)}
.lead{font-size:13px}
code{font:13px/1.4 ui-monospace,monospace;white-space:pre-wrap;unicode-bidi:isolate}
h2 code{font-size:17px}
nav{display:flex;flex-wrap:wrap;gap:3px;margin:16px 0 0}
nav a{padding:1px 5px;border-radius:4px;background:var(--tint);color:var(--ink);
text-decoration:none;max-width:100%}
nav a:hover{outline:1px solid var(--bar)}
nav a[aria-current]{background:var(--accent);color:var(--paper)}
nav a.none{color:var(--soft);font-style:italic}
section{border-top:1px solid var(--line);margin-top:20px;padding-top:18px}
section[hidden]{display:none}
.rules{list-style:none;margin:0;padding:0;font-size:14px}
.rules li{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 12px;padding:4px 0;
border-top:1px solid var(--line)}
.rules li:first-child{border-top:0}
.rules .off{color:var(--soft)}
.rules small{width:100%}
.count{margin-left:auto;font-variant-numeric:tabular-nums}
svg{display:block;width:100%;overflow:hidden}
svg text{font:11px ui-monospace,monospace;fill:var(--soft);paint-order:stroke;
stroke:var(--paper);stroke-width:3px}
svg .end{text-anchor:end}
svg .middle{text-anchor:middle}
.grid{stroke:var(--line)}
.cut{stroke:var(--soft);stroke-dasharray:2 3}
.run,.stays{fill:var(--bar)}
.run{fill:var(--soft)}
.gone{fill:var(--line)}
.wins,.tip{fill:var(--accent)}
.stem{fill:var(--soft)}
.value{stroke:var(--bar);stroke-width:5;opacity:.45}
.noise{stroke:var(--soft);stroke-width:1.5;marker-end:url(#a)}
.winner .noise{stroke:var(--accent);stroke-width:2;marker-end:url(#aw)}
.winner .value{stroke:var(--accent);opacity:.35}
svg .runner text:first-child{fill:var(--ink)}
svg .winner text{fill:var(--accent);font-weight:600}
svg .id{fill:var(--soft);font-weight:400}
.best{stroke:var(--accent);stroke-dasharray:2 3;opacity:.7}
details{margin-top:14px}
summary{font-size:13px;cursor:pointer;color:var(--soft)}
.wide{overflow-x:auto}
table{border-collapse:collapse;font:12px/1.5 ui-monospace,monospace;width:100%;
overflow-wrap:normal}
td,th{padding:2px 0 2px 12px;text-align:right;white-space:nowrap;border-top:1px solid var(--line)}
th{font-weight:400;color:var(--soft);border:0}
td:nth-child(2),th:nth-child(2){text-align:left}
td:first-child,th:first-child{padding-left:0}
.key{display:inline-block;width:10px;height:10px;margin:0 4px 0 12px;background:var(--bar)}
.key.w{background:var(--accent)}.key.g{background:var(--line)}
.turn{display:flex;gap:8px;margin-top:14px;align-items:center;font-size:13px;color:var(--soft)}
button{font:inherit;color:var(--ink);background:var(--tint);border:1px solid var(--line);
border-radius:4px;padding:3px 10px}
@media print{section[hidden]{display:block}.turn{display:none}}
"""

# Shows one step at a time. Without the script all steps are visible.
SCRIPT = """
(function () {
  var steps = document.querySelectorAll("section"), links = document.querySelectorAll("nav a");
  if (steps.length < 2) return;
  var at = 0, bar = document.querySelector(".turn"), label = document.createElement("span");
  function show(next) {
    at = Math.max(0, Math.min(steps.length - 1, next));
    for (var i = 0; i < steps.length; i++) {
      steps[i].hidden = i !== at;
      if (i === at) links[i].setAttribute("aria-current", "step");
      else links[i].removeAttribute("aria-current");
    }
    label.textContent = "step " + (at + 1) + " of " + steps.length;
  }
  function button(text, by) {
    var made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.onclick = function () { show(at + by); };
    bar.appendChild(made);
  }
  button("\\u2190 previous", -1);
  button("next \\u2192", 1);
  bar.appendChild(label);
  bar.hidden = false;
  function follow() {
    var found = /^#step-(\\d+)$/.exec(location.hash);
    show(found ? +found[1] : 0);
  }
  for (var i = 0; i < links.length; i++) {
    (function (index) {
      links[index].onclick = function (event) { event.preventDefault(); show(index); };
    })(i);
  }
  document.addEventListener("keydown", function (event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowRight") show(at + 1);
    if (event.key === "ArrowLeft") show(at - 1);
  });
  window.addEventListener("hashchange", follow);
  follow();
})();
"""
