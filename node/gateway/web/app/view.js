// What every file that draws needs of Preact, from one place.

import { h, render, Fragment } from '../vendor/preact.js';
import htm from '../vendor/htm.js';

export { h, render, Fragment };
export {
  useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback,
} from '../vendor/hooks.js';

export const html = htm.bind(h);
