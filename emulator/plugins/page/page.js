// Shows what a point of a figure says at once; without this the browser shows the same title a moment later.
const tip = document.createElement('div');
tip.className = 'tip';
tip.hidden = true;
document.body.append(tip);
for (const aim of document.querySelectorAll('.aim')) {
  const title = aim.querySelector('title'), text = title.textContent;
  aim.addEventListener('pointerenter', event => {
    title.textContent = '';
    tip.textContent = text;
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18, high = tip.offsetHeight;
    tip.style.left = Math.max(8, left) + 'px';
    tip.style.top = (below + high > innerHeight ? event.clientY - high - 12 : below) + 'px';
  });
  aim.addEventListener('pointerleave', () => { tip.hidden = true; title.textContent = text; });
}
