function render({ model, el }) {
  const [text, button, box, title] = ['pre', 'button', 'details', 'summary'].map(tag => document.createElement(tag));
  box.className = 'workbook-code'; el.classList.add('workbook-snippet');
  title.textContent = model.get('title');
  button.className = 'jupyter-button';
  button.textContent = 'Copy';
  const copied = document.createElement('span'); copied.setAttribute('role', 'status');
  const show = () => { text.textContent = model.get('text'); };   // text, never markup
  button.onclick = async () => {
    const code = model.get('text');
    try { await navigator.clipboard.writeText(code); }
    catch { const area = document.createElement('textarea'); area.value = code; document.body.append(area);
      area.select(); document.execCommand('copy'); area.remove(); }
    copied.textContent = ' copied'; setTimeout(() => { copied.textContent = ''; }, 1500);
  };
  model.on('change:text', show); show();
  box.append(title, button, copied, text); el.append(box);
  return () => model.off('change:text', show);
}
function initialize({ model }) {   // controls are reset here, where a slider's last message may still wait to be sent
  const move = async ({ moves }) => { for (const [id, trait, value] of moves) {
    const control = await model.widget_manager.get_model(id);
    control.set(trait, value); control.save_changes(); } };
  model.on('msg:custom', move);
  return () => model.off('msg:custom', move);
}
export default { initialize, render };
